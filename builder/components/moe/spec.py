"""The mixture of experts of a layer: a router, the routed experts, the shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec
from builder.components.experts.spec import ExpertsSpec
from builder.components.shared_expert.spec import SharedExpertSpec


@dataclass(frozen=True, slots=True)
class MoESpec(ComponentSpec):
    """``gate`` chooses, ``experts`` and ``shared_experts`` compute, the sum goes back."""

    module: ClassVar[str] = "builder.components.moe.module:MoE"

    gate: ComponentSpec
    experts: ExpertsSpec
    shared: SharedExpertSpec

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (("gate", self.gate), ("experts", self.experts), ("shared_experts", self.shared))
