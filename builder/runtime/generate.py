"""Generation: prompts in, tokens out, many requests at once, each at its own position, drafts verified in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from builder.runtime.acceptance import Statistics, accept
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.drafting.choice import drafter_of
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.runtime.sampling import Sampler
from builder.runtime.step import cached_step
from builder.schema.groups import GenerateConfig

OnToken = Callable[[int, int], None]
"""Called with the request's number and its new token, as soon as it is there."""


@dataclass(frozen=True)
class Generation:
    """New tokens of each prompt, target passes made, seconds they took, and what drafting brought."""

    token_ids: list[list[int]]
    steps: int
    seconds: float
    statistics: Statistics

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts per second."""
        return sum(map(len, self.token_ids)) / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As the report has it."""
        return {
            "token_ids": self.token_ids,
            "steps": self.steps,
            "accepted_per_step": self.statistics.accepted_per_step,
            "tokens_per_second": self.tokens_per_second,
            "speculation": self.statistics.to_dict(),
        }


def generate_tokens(
    model: Model, prompts: list[list[int]], settings: GenerateConfig, seed: int = 0, on_token: OnToken | None = None
) -> Generation:
    """Generate from token ids. Requests beyond runtime.max_num_seqs wait for a free place in the cache."""
    ends = (model.config.model.eos_token_id, *model.config.model.more_eos_token_ids)
    stop = frozenset(token for token in ends if token is not None and not settings.ignore_eos)
    requests = [
        Request(
            number, prompt, Sampler(settings.temperature, settings.top_p, seed + number), settings.max_new_tokens, stop
        )
        for number, prompt in enumerate(prompts)
    ]
    slots = min(len(prompts), model.config.runtime.max_num_seqs)
    length = max(map(len, prompts)) + settings.max_new_tokens + model.config.spec.drafts
    run = _Run(model, model.cache(slots, length), on_token or (lambda number, token: None))
    begun = time.perf_counter()
    with torch.inference_mode():
        for running in _in_slots(requests, slots):
            run.step(running)
    return Generation([one.tokens for one in requests], run.steps, time.perf_counter() - begun, run.statistics)


def _in_slots(requests: Sequence[Request], slots: int) -> Iterator[list[Request]]:
    # Before each step: the requests that have a place in the cache; places of finished ones go to those that wait.
    waiting, running, free = list(requests), list[Request](), list(range(slots))
    while waiting or running:
        while waiting and free:
            request = waiting.pop(0)
            request.slot = free.pop(0)
            running.append(request)
        yield running
        free += [one.slot for one in running if one.finished]
        running = [one for one in running if not one.finished]


@dataclass
class _Run:
    model: Model
    cache: Cache
    on_token: OnToken
    steps: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        self.drafter = drafter_of(self.model, self.cache)

    def step(self, running: list[Request]) -> None:
        """One pass of the target over what the requests wait for and what is drafted for them."""
        begun = time.perf_counter()
        batch = _within(self._drafts(running), self.model.config.runtime.max_num_batched_tokens)
        drafted = time.perf_counter()
        computed, stream = self._verify(batch)
        verified = time.perf_counter()
        self.drafter.observe([one for one in computed if not one.request.finished], stream)
        self.statistics.draft_seconds += drafted - begun + time.perf_counter() - verified
        self.statistics.verify_seconds += verified - drafted
        for one in computed:
            if one.request.finished:
                self.cache.reset(one.request.slot)

    def _drafts(self, running: list[Request]) -> list[tuple[Request, Draft]]:
        decoding = [one for one in running if one.decoding]
        # The last token of a request needs no draft after it.
        room = [min(self.model.config.spec.drafts, one.limit - len(one.tokens) - 1) for one in decoding]
        drafts = dict(zip(decoding, self.drafter.propose(decoding, room) if decoding else [], strict=True))
        return [(one, drafts.get(one, Draft())) for one in running]

    def _verify(self, batch: list[_Work]) -> tuple[list[Computed], Tensor]:
        self.steps += 1
        step = cached_step(self.cache, [work.tokens for work in batch], [work.request.slot for work in batch])
        stream = self.model.stage.run_layers(step)
        firsts = [sum(len(work.tokens) for work in batch[:index]) for index in range(len(batch))]
        rows = [row for work, first in zip(batch, firsts, strict=True) for row in work.rows_from(first)]
        logits = self.model.stage.predict(stream[torch.tensor(rows, device=stream.device)]) if rows else stream[:0]
        computed: list[Computed] = []
        for work, first in zip(batch, firsts, strict=True):
            computed.append(self._take(work, first, logits[: len(work.rows_from(0))]))
            logits = logits[len(work.rows_from(0)) :]
        return computed, stream

    def _take(self, work: _Work, first: int, logits: Tensor) -> Computed:
        request, start, drafts = work.request, work.request.fed, len(work.draft.tokens)
        decoding, refused = request.decoding, 0
        if work.completes:
            found = accept(work.draft, logits, request.sampler)
            refused = drafts - (len(found) - 1)
            taken = request.take(found)
            for token in taken:
                self.on_token(request.number, token)
            if decoding:
                self.statistics.add(drafts, len(found) - 1, len(taken))
        self.cache.rewind(request.slot, refused)
        request.fed = start + len(work.tokens) - refused
        return Computed(request, start, len(work.tokens) - refused, first)


@dataclass(frozen=True)
class _Work:
    # What a step computes of one request: the first ``known`` of the tokens it waits for, then drafts.
    # completes: all it waits for is in, so that what follows is the target's choice.
    request: Request
    known: int
    tokens: list[int]
    draft: Draft
    completes: bool

    @classmethod
    def of(cls, request: Request, draft: Draft, budget: int) -> _Work:
        waiting = request.waiting
        known = min(len(waiting), budget)
        kept = min(len(draft.tokens), budget - known)
        draft = Draft(draft.tokens[:kept], draft.chances[:kept] if draft.chances is not None else None)
        return cls(request, known, [*waiting[:known], *draft.tokens], draft, completes=known == len(waiting))

    def rows_from(self, first: int) -> range:
        # The rows whose logits are wanted: after the last known token, and after each draft.
        return range(first + self.known - 1, first + len(self.tokens)) if self.completes else range(0)


def _within(drafted: list[tuple[Request, Draft]], budget: int) -> list[_Work]:
    # Decoding requests first: they wait for one token each, so that a long prompt does not hold them up.
    batch: list[_Work] = []
    for request, draft in sorted(drafted, key=lambda item: not item[0].decoding):
        if budget:
            batch.append(_Work.of(request, draft, budget))
            budget -= len(batch[-1].tokens)
    # Neighbours with equally many tokens are computed together.
    return sorted(batch, key=lambda work: (len(work.tokens), work.request.slot))
