"""What the three attention kinds have in common."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from builder.components.attention.spec import AttentionSpec
from builder.components.base.module import Component
from builder.components.base.step import Block, Step
from builder.components.grouped_output.module import GroupedLinear
from builder.components.linear.module import Linear
from builder.components.norm.module import RMSNorm
from builder.components.rotary.module import Rotary
from builder.kernels.shapes import unflatten

AttentionSpecT = TypeVar("AttentionSpecT", bound=AttentionSpec)


class Attention(Component[AttentionSpecT]):
    """Queries of all heads over one shared key-value head, with a sink, and a grouped output projection.

    A kind overrides ``read``: what its queries see beside the window.
    """

    attn_sink: Tensor
    wq_a: Linear
    q_norm: RMSNorm
    wq_b: Linear
    wkv: Linear
    kv_norm: RMSNorm
    rotary: Rotary
    wo_a: GroupedLinear
    wo_b: Linear

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        turn = self.rotary.step_angles(step)
        head_turn = (turn[0].unsqueeze(1), turn[1].unsqueeze(1))
        rotate = self.ops.rotary.rotate
        latent = self.q_norm(self.wq_a(x))
        queries = unflatten(self.wq_b(latent), -1, (-1, self.spec.head_dim))
        queries = rotate(self.ops.norm.unit_norm(queries, self.spec.eps), head_turn)
        entry = rotate(self.kv_norm(self.wkv(x)), turn)
        outputs = [self._attend(x, latent, queries, entry, block, step) for block in step.blocks]
        # values carry the rotation of their own position: turn the result back by the query's
        mixed = rotate(torch.cat(outputs), head_turn, back=True)
        grouped = mixed.reshape(x.shape[0], -1, self.wo_a.spec.in_features)
        return self.wo_b(self.wo_a(grouped))

    def _attend(self, x: Tensor, latent: Tensor, queries: Tensor, entry: Tensor, block: Block, step: Step) -> Tensor:
        ring = step.memory.ring(self, "window")
        window = ring.extend(block, block.of(entry), self.spec.window - 1)
        seen = self.read(block.of(x), block.of(latent), block.of(queries), window, block, step)
        return seen.flatten(0, 1)

    def read(self, x: Tensor, latent: Tensor, queries: Tensor, window: Tensor, block: Block, step: Step) -> Tensor:
        """Attend over the window alone.

        x [batch, tokens, hidden]; latent [batch, tokens, q_rank]; queries [batch, tokens, heads, head_dim];
        window [batch, window - 1 + tokens, head_dim] -> [batch, tokens, heads, head_dim].
        """
        del x, latent, step
        return self.ops.attention.attend(queries, window, block.first, self.attn_sink)
