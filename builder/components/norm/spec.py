"""Root-mean-square norm with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Tensor


@dataclass(frozen=True, slots=True)
class RMSNormSpec(ComponentSpec):
    """RMSNorm over the last dimension, ``width`` wide."""

    module: ClassVar[str] = "builder.components.norm.module:RMSNorm"

    width: int
    eps: float
    dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor("weight", (self.width,), self.dtype),)


@dataclass(frozen=True, slots=True)
class FinalNormSpec(RMSNormSpec):
    """The norm before the output head."""

    counted: ClassVar[str | None] = "norm"
