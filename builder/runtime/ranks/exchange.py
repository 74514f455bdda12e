"""Expert parallelism: tokens travel to the ranks that hold their experts, and their sums travel back.

The ranks of a group meet layer by layer. With ep > tp they compute different requests and may stand at different
layers, or have nothing to compute: at every meeting the lowest layer goes first, and whoever stands elsewhere (or is
done) computes for the others. So nobody waits for a rank that will not come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from builder.components.experts.module import Experts
from builder.kernels.reference.precision import exact_dtype
from builder.kernels.shapes import split
from builder.runtime.ranks.groups import Group

DONE = 1 << 30
"""The layer of a rank that has ended its pass."""

_IDS = torch.int32


@dataclass(frozen=True)
class _Parcels:
    # What this rank's tokens send, one rank of the group after the other; rows: where in x each message came from.
    rows: Tensor
    chosen: Tensor
    weights: Tensor
    counts: list[int]


@dataclass(frozen=True)
class _Meeting:
    # The layer that goes first, and how many messages this rank sends to and receives from each of the group there.
    layer: int
    busy: bool
    active: int
    sent: list[int]
    received: list[int]


class Exchange:
    """The routed experts of one stage, spread over a group.

    Of the tokens that tp ranks hold alike, each sends its share. Every rank gets the sums of its own share back; the
    tp group then adds the shares up.
    """

    def __init__(self, group: Group, tp: Group | None, dtype: torch.dtype, device: torch.device) -> None:
        self.group, self.tp, self.dtype, self.device = group, tp, dtype, device
        self._layers: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = []
        self._hidden: list[int] = []

    def spread(self, part: Experts) -> None:
        """From now on, calling ``part`` means: ask those who hold the experts."""
        layer, held = len(self._layers), part.spec.experts // self.group.size
        self._layers.append(part.forward)
        self._hidden.append(part.spec.hidden)

        def forward(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            return self._run(layer, held, x, chosen, weights)

        part.forward = forward

    def finish(self, busy: bool) -> bool:
        """End a pass: compute for the others until all have ended theirs. Whether any of them is still busy."""
        while True:
            meeting = self._meet(DONE, 0, [0] * self.group.size, busy=busy)
            if meeting.layer == DONE:
                return meeting.busy
            self._serve(meeting, None)

    def _run(self, layer: int, held: int, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        # x [tokens, hidden]; chosen, weights [tokens, active] -> [tokens, hidden], exact
        total = x.new_zeros(x.shape, dtype=exact_dtype(x.dtype))
        mine = self._share(x.shape[0])
        parcels = _pack(chosen[mine], weights[mine], held, self.group.size)
        while True:
            meeting = self._meet(layer, chosen.shape[1], parcels.counts, busy=True)
            if meeting.layer == layer:
                break
            self._serve(meeting, None)
        sums = self._serve(meeting, _wrap(x[mine], parcels))
        total[mine].index_add_(0, parcels.rows, sums)
        return total if self.tp is None else self.tp.add(total)

    def _share(self, tokens: int) -> slice:
        if self.tp is None:
            return slice(0, tokens)
        each = -(-tokens // self.tp.size)
        return slice(min(self.tp.index * each, tokens), min((self.tp.index + 1) * each, tokens))

    def _meet(self, layer: int, active: int, counts: Sequence[int], *, busy: bool) -> _Meeting:
        table = self.group.table([layer, int(busy), active, *counts], self.device)
        now = min(row[0] for row in table)
        there = [row[0] == now for row in table]
        me = self.group.index
        return _Meeting(
            layer=now,
            busy=any(row[1] for row in table),
            active=next(row[2] for row, here in zip(table, there, strict=True) if here),
            sent=table[me][3:] if there[me] else [0] * len(table),
            received=[row[3 + me] if here else 0 for row, here in zip(table, there, strict=True)],
        )

    def _serve(self, meeting: _Meeting, messages: Tensor | None) -> Tensor:
        # Everybody's tokens to their experts and back: [tokens sent, hidden], exact, in the order they were sent in.
        if messages is None:
            messages = torch.empty((0, sum(self._widths(meeting))), dtype=torch.uint8, device=self.device)
        arrived = self.group.exchange(messages, meeting.sent, meeting.received)
        return self.group.exchange(self._compute(meeting, arrived), meeting.received, meeting.sent)

    def _compute(self, meeting: _Meeting, arrived: Tensor) -> Tensor:
        exact = exact_dtype(self.dtype)
        if not arrived.shape[0]:
            return torch.empty((0, self._hidden[meeting.layer]), dtype=exact, device=self.device)
        # Copies: the bytes of one message are not aligned for what they stand for.
        x, chosen, weights = (
            part.clone(memory_format=torch.contiguous_format) for part in split(arrived, self._widths(meeting))
        )
        return self._layers[meeting.layer](x.view(self.dtype), chosen.view(_IDS).long(), weights.view(exact))

    def _widths(self, meeting: _Meeting) -> tuple[int, int, int]:
        exact = exact_dtype(self.dtype)
        hidden, active = self._hidden[meeting.layer], meeting.active
        return hidden * self.dtype.itemsize, active * _IDS.itemsize, active * exact.itemsize


def _pack(chosen: Tensor, weights: Tensor, held: int, ranks: int) -> _Parcels:
    # A token goes once to every rank that holds one of its experts; experts that are not there are marked -1.
    owner = chosen // held
    going = torch.stack([(owner == rank).any(dim=-1) for rank in range(ranks)])
    rank, rows = going.nonzero(as_tuple=True)
    here = torch.where(owner[rows] == rank.unsqueeze(-1), chosen[rows] % held, -1)
    counts = cast("list[int]", cast("Any", going.sum(dim=-1)).tolist())
    return _Parcels(rows, here, weights[rows], counts)


def _wrap(x: Tensor, parcels: _Parcels) -> Tensor:
    # One message a token, in bytes: its hidden state, its experts, their weights.
    parts = (x[parcels.rows], parcels.chosen.to(_IDS), parcels.weights)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)
