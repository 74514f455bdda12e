"""The shared expert: every token passes through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Axis, ComponentSpec, Join
from builder.components.linear.spec import Cut, LinearSpec, WeightFormat


@dataclass(frozen=True, slots=True)
class SharedExpertSpec(ComponentSpec):
    """One SwiGLU expert of ``inner`` width, clamped like the routed ones."""

    module: ClassVar[str] = "builder.components.shared_expert.module:SharedExpert"

    hidden: int
    inner: int
    limit: float
    form: WeightFormat

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        cut = Cut(Axis.SHARED_INNER, self.inner, "moe_intermediate_size")
        into = LinearSpec(self.inner, self.hidden, self.form, rows=cut)
        return (("w1", into), ("w2", LinearSpec(self.hidden, self.inner, self.form, columns=cut)), ("w3", into))

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ((Axis.SHARED_INNER, Join.SUM),)
