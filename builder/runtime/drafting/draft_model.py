"""Drafting with a second, smaller model, which has its own rows in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from builder.components.draft_model.module import DraftModel
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.runtime.step import last_rows, make_step


class DraftModelDrafting:
    """The draft reads what the target has, then goes on by itself; tokens that did not stand are overwritten."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.part = cast("DraftModel", model.stage.get_submodule("draft"))
        self.cache, self.budget = cache, model.config.runtime.max_num_batched_tokens
        self._read: dict[Request, int] = {}

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``: of the tokens it drafted, those that the target refused have to be read again."""
        del stream
        for one in computed:
            standing = one.start + one.rows
            self._read[one.request] = min(self._read.get(one.request, 0), standing)

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        tokens: dict[Request, list[int]] = {one: [] for one in requests}
        chances: dict[Request, list[Tensor]] = {one: [] for one in requests}
        most_of = dict(zip(requests, room, strict=True))
        wanting = [one for one in requests if most_of[one] > 0]
        while wanting:
            logits = self._read_all(wanting, tokens)
            for row, one in enumerate(wanting):
                token, chance = one.sampler.choose_with_chance(logits[row])
                tokens[one].append(token)
                chances[one] += [] if chance is None else [chance]
            wanting = [one for one in wanting if len(tokens[one]) < most_of[one]]
        return [Draft(tuple(tokens[one]), tuple(chances[one]) or None) for one in requests]

    def _read_all(self, requests: Sequence[Request], tokens: dict[Request, list[int]]) -> Tensor:
        """Logits after everything that a request has, drafts included: [requests, vocabulary]."""
        return torch.stack([self._read_one(one, [*one.sequence, *tokens[one]]) for one in requests])

    def _read_one(self, request: Request, sequence: list[int]) -> Tensor:
        logits: Tensor | None = None
        # Drafts of a step that had no room for the request were read, but never stood.
        start = min(self._read.get(request, 0), len(sequence) - 1)
        while start < len(sequence):
            piece = sequence[start : start + self.budget]
            step = make_step(self.cache, [piece], [start], [request.slot], self.cache.device)
            logits = self.part.predict(self.part.run_layers(step)[last_rows(step)])
            start += len(piece)
        self._read[request] = start
        assert logits is not None, "a request waits for at least one token"
        return logits[0]
