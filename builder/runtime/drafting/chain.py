"""Drafts made one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from builder.runtime.drafting.base import Draft
from builder.runtime.request import Request
from builder.runtime.sampling import choose_each

Logits = Callable[[Sequence[Request], Sequence[list[int]]], Tensor]
"""Logits of the next draft, [requests, vocabulary], from some requests and the drafts that each has so far."""


def draft_in_turn(requests: Sequence[Request], room: Sequence[int], logits: Logits) -> list[Draft]:
    """``room[i]`` tokens for each request; those that want more go on together. All have equally many at any time."""
    tokens: list[list[int]] = [[] for _ in requests]
    chances: list[list[Tensor]] = [[] for _ in requests]
    wanting = [index for index, most in enumerate(room) if most > 0]
    while wanting:
        members = [requests[index] for index in wanting]
        found = choose_each([one.sampler for one in members], logits(members, [tokens[index] for index in wanting]))
        for index, (token, chance) in zip(wanting, found, strict=True):
            tokens[index].append(token)
            chances[index] += [] if chance is None else [chance]
        wanting = [index for index in wanting if len(tokens[index]) < room[index]]
    return [Draft(tuple(one), tuple(drawn_from) or None) for one, drawn_from in zip(tokens, chances, strict=True)]
