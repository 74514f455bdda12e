"""The input embedding; the first stage also makes the residual streams from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Axis, ComponentSpec, Join, Split, Tensor


@dataclass(frozen=True, slots=True)
class EmbeddingSpec(ComponentSpec):
    """A row per token of the vocabulary; tp divides the rows, unevenly where it must."""

    module: ClassVar[str] = "builder.components.embedding.module:Embedding"
    counted: ClassVar[str | None] = "embedding"

    vocabulary: int
    hidden: int
    dtype: str
    source: str | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        split = Split(0, Axis.VOCABULARY, self.vocabulary, "vocab_size")
        return (Tensor("weight", (self.vocabulary, self.hidden), self.dtype, (split,), source=self.source),)

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ((Axis.VOCABULARY, Join.LOOK_UP),)
