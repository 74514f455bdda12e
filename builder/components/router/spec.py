"""The learned router: which experts a token goes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Tensor


@dataclass(frozen=True, slots=True)
class RouterSpec(ComponentSpec):
    """Scores sqrt(softplus(x W^T)); the bias takes part in the choice only (auxiliary-loss-free balancing)."""

    module: ClassVar[str] = "builder.components.router.module:Router"
    counted: ClassVar[str | None] = "router"

    hidden: int
    experts: int
    active: int
    scaling: float
    weight_dtype: str
    bias_dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            Tensor("weight", (self.experts, self.hidden), self.weight_dtype),
            Tensor("bias", (self.experts,), self.bias_dtype),
        )
