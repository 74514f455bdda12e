"""The hash router of the first layers (paper section 2.1): a table from token ids to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Tensor


@dataclass(frozen=True, slots=True)
class HashRouterSpec(ComponentSpec):
    """The choice comes from ``tid2eid``, the weights from the scores as in the learned router."""

    module: ClassVar[str] = "builder.components.hash_router.module:HashRouter"
    counted: ClassVar[str | None] = "hash_router"

    hidden: int
    experts: int
    active: int
    scaling: float
    vocabulary: int
    weight_dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            Tensor("weight", (self.experts, self.hidden), self.weight_dtype),
            Tensor("tid2eid", (self.vocabulary, self.active), "I64", values=0),
        )
