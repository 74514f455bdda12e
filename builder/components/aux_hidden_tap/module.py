"""The tap of averaged hidden states."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.components.aux_hidden_tap.spec import AuxHiddenTapSpec, TappedMixSpec
from builder.components.base.module import Component, held_rows
from builder.components.base.step import Step


class AuxHiddenTap(Component[AuxHiddenTapSpec]):
    """Keeps the named layers' averages over the streams, side by side."""

    rows: Tensor

    def keep(self, column: int, stream: Tensor, row: int) -> None:
        """Write a stream's average, [tokens, hc_mult, hidden], from ``row`` on. More rows than there are: an error."""
        kept = held_rows(self.rows, row, stream.shape[0], "the tap of hidden states")
        hidden = self.spec.hidden
        torch.mean(stream, dim=1, out=kept[:, column * hidden : (column + 1) * hidden])


class TappedMix(Component[TappedMixSpec]):
    """Ends a named layer in place of a plain stream mix."""

    tap: AuxHiddenTap

    def forward(self, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, step: Step) -> Tensor:
        """y [tokens, hidden], stream [tokens, hc_mult, hidden] -> [tokens, hc_mult, hidden]."""
        mixed = self.ops.hyper_connections.after(y, stream, post, comb)
        self.tap.keep(self.spec.column, mixed, step.stash_row)
        return mixed
