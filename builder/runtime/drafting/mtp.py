"""Drafting with the release's own MTP block (or an EAGLE head of the same make): a chain of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from builder.components.mtp_drafter.module import MTPDrafter
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
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
        self._ahead: dict[Request, tuple[Tensor, Tensor]] = {}

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``: follow the target over the rows that stand."""
        if not computed:
            return
        following = [one.request.sequence[one.start + 1 : one.start + 1 + one.rows] for one in computed]
        rows = [row for one in computed for row in range(one.first_row, one.first_row + one.rows)]
        if rows != list(range(stream.shape[0])):
            stream = stream[torch.tensor(rows, device=stream.device)]
        self._run([one.request for one in computed], following, [one.start for one in computed], stream)

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        tokens: dict[Request, list[int]] = {one: [] for one in requests}
        chances: dict[Request, list[Tensor]] = {one: [] for one in requests}
        wanting = [one for one, most in zip(requests, room, strict=True) if most > 0]
        most_of = dict(zip(requests, room, strict=True))
        while wanting:
            for one in wanting:
                token, chance = one.sampler.choose_with_chance(self._ahead[one][1])
                tokens[one].append(token)
                chances[one] += [] if chance is None else [chance]
            wanting = [one for one in wanting if len(tokens[one]) < most_of[one]]
            if wanting:
                self._run_ahead(wanting, tokens)
        return [Draft(tuple(tokens[one]), tuple(chances[one]) or None) for one in requests]

    def _run_ahead(self, requests: Sequence[Request], tokens: dict[Request, list[int]]) -> None:
        starts = [one.fed + len(tokens[one]) - 1 for one in requests]
        streams = torch.cat([self._ahead[one][0] for one in requests])
        self._run(requests, [[tokens[one][-1]] for one in requests], starts, streams)

    def _run(self, requests: Sequence[Request], following: list[list[int]], starts: list[int], stream: Tensor) -> None:
        step = make_step(self.cache, following, starts, [one.slot for one in requests], self.cache.device)
        drafted = self.part.block(stream, step)[last_rows(step)]
        logits = self.part.block.logits(drafted)
        for row, one in enumerate(requests):
            self._ahead[one] = drafted[row : row + 1], logits[row]
