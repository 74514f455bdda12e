"""The lightning indexer."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Block, Step
from builder.components.compressor.module import Compressor
from builder.components.indexer.spec import IndexerSpec
from builder.components.linear.module import Linear
from builder.components.rotary.module import Rotary
from builder.kernels.shapes import unflatten


class Indexer(Component[IndexerSpec]):
    """Scores the entries for each query and picks the best."""

    wq_b: Linear
    weights_proj: Linear
    compressor: Compressor

    def forward(self, x: Tensor, latent: Tensor, block: Block, step: Step, rotary: Rotary) -> Tensor | None:
        """Keep the keys of new entries, and pick: [batch, tokens, count], or None where all ready entries are read.

        x [batch, tokens, hidden]; latent [batch, tokens, q_rank], the queries' low-rank form.
        """
        spec = self.spec
        table = step.memory.table(self, "keys")
        self.compressor(x, block, step, rotary, table)
        entries = block.most_ready(spec.ratio)
        if entries <= spec.topk:
            return None
        queries = unflatten(self.wq_b(latent), -1, (-1, spec.head_dim))
        cos, sin = (block.of(turn).unsqueeze(2) for turn in rotary.step_angles(step))
        queries = table.codec.query(self.ops.rotary.rotate(queries, (cos, sin)))
        keys = table.codec.decode(table.read(block, entries), queries.dtype)
        weights = self.weights_proj(x) * (spec.head_dim * spec.heads) ** -0.5
        return self.ops.indexer.pick(queries, keys, weights, block.ready(spec.ratio), spec.topk)
