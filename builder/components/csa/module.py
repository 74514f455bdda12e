"""Compressed sparse attention."""

from __future__ import annotations

from torch import Tensor

from builder.components.attention.module import Attention
from builder.components.base.step import Block, Step
from builder.components.compressor.module import Compressor
from builder.components.csa.spec import CompressedSparseAttentionSpec
from builder.components.indexer.module import Indexer


class CompressedSparseAttention(Attention[CompressedSparseAttentionSpec]):
    """Reads the window and the entries that the indexer picks."""

    compressor: Compressor
    indexer: Indexer

    def read(self, x: Tensor, latent: Tensor, queries: Tensor, window: Tensor, block: Block, step: Step) -> Tensor:
        table = step.memory.table(self, "entries")
        self.compressor(x, block, step, self.rotary, table)
        picks = self.indexer(x, latent, block, step, self.rotary)
        ratio = self.spec.ratio
        entries = table.read(block, block.most_ready(ratio))
        return self.ops.attention.attend(
            queries, window, block.first, self.attn_sink, entries, block.ready(ratio), picks, table.codec.decode
        )
