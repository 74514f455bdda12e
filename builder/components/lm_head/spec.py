"""The output head: logits over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Axis, ComponentSpec, Join, Split, Tensor


@dataclass(frozen=True, slots=True)
class LMHeadSpec(ComponentSpec):
    """Computes in float32; tp divides the vocabulary, unevenly where it must."""

    module: ClassVar[str] = "builder.components.lm_head.module:LMHead"
    counted: ClassVar[str | None] = "lm_head"

    vocabulary: int
    hidden: int
    dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        split = Split(0, Axis.VOCABULARY, self.vocabulary, "vocab_size")
        return (Tensor("weight", (self.vocabulary, self.hidden), self.dtype, (split,)),)

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ((Axis.VOCABULARY, Join.CONCATENATE),)
