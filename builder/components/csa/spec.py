"""Compressed sparse attention (paper section 2.3.1): the window, and the entries that the indexer picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from builder.components.attention.spec import AttentionSpec
from builder.components.base.spec import ComponentSpec
from builder.components.compressor.spec import CompressorSpec
from builder.components.indexer.spec import IndexerSpec
from builder.schema.model import ModelConfig


@dataclass(frozen=True, slots=True)
class CompressedSparseAttentionSpec(AttentionSpec):
    """Reads the window and at most ``index_topk`` entries, one per ``ratio`` tokens, of overlapping windows."""

    module: ClassVar[str] = "builder.components.csa.module:CompressedSparseAttention"
    counted: ClassVar[str | None] = "csa"

    index_heads: int
    index_head_dim: int
    index_topk: int

    @classmethod
    def ratio_of(cls, model: ModelConfig) -> int:
        return model.csa_ratio

    @classmethod
    def extras(cls, model: ModelConfig) -> dict[str, Any]:
        return {
            "index_heads": model.index_n_heads,
            "index_head_dim": model.index_head_dim,
            "index_topk": model.index_topk,
        }

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        compressor = CompressorSpec(
            self.hidden, self.head_dim, self.ratio, overlap=True, eps=self.eps, formats=self.formats
        )
        indexer = IndexerSpec(
            self.hidden,
            self.q_rank,
            self.index_heads,
            self.index_head_dim,
            self.index_topk,
            self.ratio,
            self.eps,
            self.formats,
        )
        return (*AttentionSpec.children(self), ("compressor", compressor), ("indexer", indexer))
