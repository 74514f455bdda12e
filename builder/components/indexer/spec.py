"""The lightning indexer of compressed sparse attention (paper section 2.3.1): which entries a query reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from builder.components.base.spec import Axis, CacheFormat, CacheRows, ComponentSpec, Join
from builder.components.compressor.spec import CompressorSpec
from builder.components.linear.spec import Cut, Formats, LinearSpec, WeightFormat
from builder.schema.model import FP4_BLOCK


@dataclass(frozen=True, slots=True)
class IndexerSpec(ComponentSpec):
    """Scores of ``heads`` small heads, summed; the best ``topk`` entries are read."""

    module: ClassVar[str] = "builder.components.indexer.module:Indexer"

    hidden: int
    q_rank: int
    heads: int
    head_dim: int
    topk: int
    ratio: int
    eps: float
    formats: Formats

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        heads = Cut(Axis.INDEX_HEADS, self.heads, "index_n_heads")
        plain = WeightFormat("plain", self.formats.plain)
        return (
            ("wq_b", LinearSpec(self.heads * self.head_dim, self.q_rank, self.formats.linear, rows=heads)),
            ("weights_proj", LinearSpec(self.heads, self.hidden, plain, rows=heads)),
            (
                "compressor",
                CompressorSpec(
                    self.hidden, self.head_dim, self.ratio, overlap=True, eps=self.eps, formats=self.formats
                ),
            ),
        )

    def cache(self, form: CacheFormat) -> tuple[CacheRows, ...]:
        # Plain, FP8 with one float32 scale, or FP4 with a scale byte per 32.
        width = self.head_dim
        match form.layout:
            case "fp8":
                row = CacheRows("keys", width + 4, "U8", code="fp8_key")
            case "fp8_fp4":
                row = CacheRows("keys", width // 2 + -(-width // FP4_BLOCK), "U8", code="fp4_key")
            case _:
                row = CacheRows("keys", width, form.entry_dtype)
        return (replace(row, ratio=self.ratio, features=width),)

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ((Axis.INDEX_HEADS, Join.SCORES),)
