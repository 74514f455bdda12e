"""Drafting with the release's own MTP block (or an EAGLE head of the same make): a chain of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from builder.components.mtp_drafter.module import MTPDrafter
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.drafting.chain import draft_in_turn
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.runtime.step import last_rows, make_step


class MTPDrafting:
    """The block follows the target position by position, and runs ahead of it on its own stream.

    At position p it takes the target's stream of p and the token at p + 1, and predicts the token at p + 2. What it
    computed ahead is overwritten once the target has been there: its ring is rewound for nothing, like all others.
    """

    def __init__(self, model: Model, cache: Cache) -> None:
        self.part = cast("MTPDrafter", model.stage.get_submodule("mtp"))
        self.cache = cache
        # By slot, so that a finished request's are replaced by the next one's: the block's stream at the last position
        # that the target has computed, [1, hc_mult, hidden], and its logits, [vocabulary].
        self._followed: dict[int, tuple[Tensor, Tensor]] = {}

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``: follow the target over the rows that stand."""
        if not computed:
            return
        requests = [one.request for one in computed]
        following = [one.request.sequence[one.start + 1 : one.start + 1 + one.rows] for one in computed]
        rows = [row for one in computed for row in range(one.first_row, one.first_row + one.rows)]
        if rows != list(range(stream.shape[0])):
            stream = stream[torch.tensor(rows, device=stream.device)]
        streams, logits = self._run(requests, following, [one.start for one in computed], stream)
        for row, one in enumerate(requests):
            self._followed[one.slot] = streams[row : row + 1], logits[row]

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        ahead: dict[Request, Tensor] = {}

        def logits(wanting: Sequence[Request], tokens: Sequence[list[int]]) -> Tensor:
            if not tokens[0]:
                return torch.stack([self._followed[one.slot][1] for one in wanting])
            starts = [one.fed + len(drafted) - 1 for one, drafted in zip(wanting, tokens, strict=True)]
            before = torch.cat([ahead.get(one, self._followed[one.slot][0]) for one in wanting])
            streams, found = self._run(wanting, [drafted[-1:] for drafted in tokens], starts, before)
            ahead.update((one, streams[row : row + 1]) for row, one in enumerate(wanting))
            return found

        return draft_in_turn(requests, room, logits)

    def _run(
        self, requests: Sequence[Request], following: Sequence[list[int]], starts: Sequence[int], stream: Tensor
    ) -> tuple[Tensor, Tensor]:
        # The block's stream and logits of each request's last row: [requests, hc_mult, hidden], [requests, vocabulary]
        step = make_step(self.cache, following, starts, [one.slot for one in requests], self.cache.device)
        return self.part(stream, step, last_rows(step))


drafter = MTPDrafting
