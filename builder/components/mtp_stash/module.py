"""The MTP stash."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component, held_rows
from builder.components.base.step import Step
from builder.components.mtp_stash.spec import MTPStashSpec
from builder.kernels.shapes import unflatten


class MTPStash(Component[MTPStashSpec]):
    """Ends the last layer in place of a plain stream mix: the mix is written into ``rows``."""

    rows: Tensor

    def forward(self, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, step: Step) -> Tensor:
        """y [tokens, hidden], stream [tokens, hc_mult, hidden] -> the rows written, [tokens, hc_mult, hidden]."""
        out = self.written(step.stash_row, stream.shape[0])
        return self.ops.hyper_connections.after(y, stream, post, comb, out)

    def written(self, row: int, tokens: int) -> Tensor:
        """The ``tokens`` rows from ``row`` on: [tokens, hc_mult, hidden]. More than there are is an error."""
        kept = held_rows(self.rows, row, tokens, "the MTP stash")
        return unflatten(kept, -1, (self.spec.streams, self.spec.hidden))
