"""Heavily compressed attention."""

from __future__ import annotations

from torch import Tensor

from builder.components.attention.module import Attention
from builder.components.base.step import Block, Step
from builder.components.compressor.module import Compressor
from builder.components.hca.spec import HeavilyCompressedAttentionSpec


class HeavilyCompressedAttention(Attention[HeavilyCompressedAttentionSpec]):
    """Reads the window and every compressed entry."""

    compressor: Compressor

    def read(self, x: Tensor, latent: Tensor, queries: Tensor, window: Tensor, block: Block, step: Step) -> Tensor:
        del latent
        table = step.memory.table(self, "entries")
        self.compressor(x, block, step, self.rotary, table)
        ratio = self.spec.ratio
        entries = table.read(block, block.most_ready(ratio))
        return self.ops.attention.attend(
            queries, window, block.first, self.attn_sink, entries, block.ready(ratio), decode=table.codec.decode
        )
