"""The compressor: one cache entry per ``ratio`` tokens (paper sections 2.3.1 and 2.3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import CacheFormat, CacheRows, ComponentSpec, Tensor
from builder.components.linear.spec import Formats, LinearSpec, WeightFormat
from builder.components.norm.spec import RMSNormSpec


@dataclass(frozen=True, slots=True)
class CompressorSpec(ComponentSpec):
    """Softmax-weighted pooling of windows of ``ratio`` tokens into entries of ``width``.

    overlap: an entry also pools the window before it, so that the projections are twice as wide (CSA).
    """

    module: ClassVar[str] = "builder.components.compressor.module:Compressor"

    hidden: int
    width: int
    ratio: int
    overlap: bool
    eps: float
    formats: Formats

    @property
    def windows(self) -> int:
        """Windows that one entry pools: 2 with overlap, else 1."""
        return 2 if self.overlap else 1

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor("ape", (self.ratio, self.windows * self.width), self.formats.kept),)

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        projection = LinearSpec(self.windows * self.width, self.hidden, WeightFormat("plain", self.formats.plain))
        return (
            ("wkv", projection),
            ("wgate", projection),
            ("norm", RMSNormSpec(self.width, self.eps, self.formats.plain)),
        )

    def cache(self, form: CacheFormat) -> tuple[CacheRows, ...]:
        # A key and a score row for every token whose window is not complete, and for those that a rewind may reopen.
        rows = self.windows * self.ratio + form.drafts
        width = 2 * self.windows * self.width
        return (CacheRows("open", width, form.open_dtype, fixed=rows, features=width),)
