"""The routed experts of a layer, stacked: one tensor per matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Axis, ComponentSpec, Join
from builder.components.linear.spec import Cut, StackedLinearSpec, WeightFormat


@dataclass(frozen=True, slots=True)
class ExpertsSpec(ComponentSpec):
    """SwiGLU experts of ``inner`` width: w2(silu(w1 x) * w3 x), gate and up clamped at ``limit``."""

    module: ClassVar[str] = "builder.components.experts.module:Experts"

    hidden: int
    inner: int
    experts: int
    limit: float
    form: WeightFormat

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        cut = Cut(Axis.EXPERT_INNER, self.inner, "moe_intermediate_size")
        into = StackedLinearSpec(self.inner, self.hidden, self.form, rows=cut, experts=self.experts)
        back = StackedLinearSpec(self.hidden, self.inner, self.form, columns=cut, experts=self.experts)
        return (("w1", into), ("w2", back), ("w3", into))

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return (Axis.EXPERT_INNER, Join.SUM), (Axis.EXPERTS, Join.EXCHANGE)
