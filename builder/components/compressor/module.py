"""The compressor of a layer or of its indexer."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Block, Step, Table
from builder.components.compressor.spec import CompressorSpec
from builder.components.linear.module import Linear
from builder.components.norm.module import RMSNorm
from builder.components.rotary.module import Rotary


class Compressor(Component[CompressorSpec]):
    """Pools windows of tokens into entries; the rows of an incomplete window wait in the open rows."""

    ape: Tensor
    wkv: Linear
    wgate: Linear
    norm: RMSNorm

    def forward(self, x: Tensor, block: Block, step: Step, rotary: Rotary, table: Table) -> None:
        """Put the entries that the block's tokens complete into ``table``: x [batch, tokens, hidden]."""
        rows = self._rows(x, block)
        opened = step.memory.ring(self, "open")
        sequences, tokens = block.ends(self.spec.ratio)
        if not tokens:
            opened.append(block, rows)
            return
        reach = self.spec.windows * self.spec.ratio - 1
        history = opened.extend(block, rows, reach)
        sequence, token = (torch.tensor(index, device=x.device) for index in (sequences, tokens))
        last = block.first[sequence] + token
        pooled = self._pool(
            history[sequence.unsqueeze(-1), token.unsqueeze(-1) + torch.arange(reach + 1, device=x.device)], last
        )
        entries = self.norm(pooled.to(x.dtype))
        turned = self.ops.rotary.rotate(entries, rotary.angles(last - self.spec.ratio + 1))
        table.extend(block, sequence, last // self.spec.ratio, turned)

    def _rows(self, x: Tensor, block: Block) -> Tensor:
        # Key and score of every token, with the bias of its place in its window: [batch, tokens, 2 * windows * width]
        scores = self.wgate.exact(x)
        scores = scores + self.ape.to(scores.dtype)[block.places(self.spec.ratio)]
        return torch.cat((self.wkv.exact(x), scores), dim=-1)

    def _pool(self, rows: Tensor, last: Tensor) -> Tensor:
        # rows [entries, windows * ratio, 2 * windows * width] -> [entries, width]
        keys, scores = rows.chunk(2, dim=-1)
        if not self.spec.overlap:
            return self.ops.compressor.pool(keys, scores)
        ratio, width = self.spec.ratio, self.spec.width
        keys, scores = (torch.cat((half[:, :ratio, :width], half[:, ratio:, width:]), dim=1) for half in (keys, scores))
        absent = (last < ratio).unsqueeze(-1) & (torch.arange(2 * ratio, device=rows.device) < ratio)
        return self.ops.compressor.pool(keys, scores, absent)
