"""Drafting with a second, smaller model, which has its own rows in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from builder.components.draft_model.module import DraftModel
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.drafting.chain import draft_in_turn
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.runtime.step import last_rows, make_step


class DraftModelDrafting:
    """The draft reads what the target has, then goes on by itself; tokens that did not stand are overwritten."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.part = cast("DraftModel", model.stage.get_submodule("draft"))
        self.cache, self.budget = cache, model.config.runtime.max_num_batched_tokens
        # By slot: how many tokens of its request the draft has read.
        self._read: dict[int, int] = {}

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``: of the tokens it drafted, those that the target refused have to be read again."""
        del stream
        for one in computed:
            # A request that starts has nothing of the one that had its slot before.
            known = self._read.get(one.request.slot, 0) if one.start else 0
            self._read[one.request.slot] = min(known, one.start + one.rows)

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        return draft_in_turn(requests, room, self._logits)

    def _logits(self, requests: Sequence[Request], tokens: Sequence[list[int]]) -> Tensor:
        # After everything that each request has, drafts included: [requests, vocabulary]
        sequences = [[*one.sequence, *drafted] for one, drafted in zip(requests, tokens, strict=True)]
        slots = [one.slot for one in requests]
        # Of drafts that were not verified, more may have been read than there is now: the last token is read again.
        starts = [min(self._read.get(slot, 0), len(ids) - 1) for slot, ids in zip(slots, sequences, strict=True)]
        found: dict[int, Tensor] = {}
        while len(found) < len(requests):
            pieces = self._pieces(sequences, starts)
            step = make_step(
                self.cache,
                list(pieces.values()),
                [starts[index] for index in pieces],
                [slots[index] for index in pieces],
                self.cache.device,
            )
            logits = self.part.predict(self.part.run_layers(step)[last_rows(step)])
            for row, (index, piece) in enumerate(pieces.items()):
                starts[index] += len(piece)
                if starts[index] == len(sequences[index]):
                    found[index] = logits[row]
        self._read.update(zip(slots, starts, strict=True))
        return torch.stack([found[index] for index in range(len(requests))])

    def _pieces(self, sequences: Sequence[list[int]], starts: Sequence[int]) -> dict[int, list[int]]:
        # What is to be read of each sequence, as far as a step holds it; the shortest first: most have one token.
        pieces: dict[int, list[int]] = {}
        budget = self.budget
        for index in sorted(range(len(sequences)), key=lambda index: len(sequences[index]) - starts[index]):
            piece = sequences[index][starts[index] : starts[index] + budget]
            if piece:
                pieces[index] = piece
                budget -= len(piece)
        return pieces


drafter = DraftModelDrafting
