"""Generation: prompts in, tokens out, many requests at once, each at its own position, drafts verified in one pass.

Every rank runs the same loop over the same requests; the last stage alone decides, and tells the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from builder.runtime.acceptance import Statistics, accept
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.drafting.choice import drafter_of
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.runtime.sampling import Sampler
from builder.runtime.schedule import Queue, Work
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
    """Generate from token ids. Requests beyond runtime.max_num_seqs wait for a free place in the cache.

    Among several ranks, the one that leads returns everything; on others, what is not theirs is empty.
    """
    peers, config = model.peers, model.config
    ends = (config.model.eos_token_id, *config.model.more_eos_token_ids)
    stop = frozenset(token for token in ends if token is not None and not settings.ignore_eos)
    requests = [
        Request(
            number, prompt, Sampler(settings.temperature, settings.top_p, seed + number), settings.max_new_tokens, stop
        )
        for number, prompt in enumerate(prompts)
    ]
    mine = requests[peers.replica :: peers.replicas]
    slots = min(len(mine), config.runtime.max_num_seqs)
    length = max(map(len, prompts)) + settings.max_new_tokens + config.spec.drafts
    budget = config.runtime.max_num_batched_tokens
    if peers.stages > 1:
        budget = min(budget, config.parallel.microbatch_tokens)
    run = _Run(model, model.cache(slots, length), on_token or (lambda number, token: None))
    begun = time.perf_counter()
    with torch.inference_mode():
        run.all_of(Queue(mine, slots, budget, peers.stages))
    found = peers.collect((run.steps, run.statistics, {one.number: one.tokens for one in mine}))
    return _joined(found or [], requests, time.perf_counter() - begun)


def _joined(
    found: Sequence[tuple[int, Statistics, dict[int, list[int]]]], requests: Sequence[Request], seconds: float
) -> Generation:
    tokens = {number: new for _, _, part in found for number, new in part.items()}
    statistics = sum((one for _, one, _ in found), Statistics())
    return Generation(
        [tokens.get(one.number, []) for one in requests], sum(steps for steps, _, _ in found), seconds, statistics
    )


@dataclass
class _Pass:
    # A pass under way. taken: each completing request's new tokens, once they are known here.
    works: list[Work]
    taken: list[tuple[Request, list[int]]] | None = None

    @property
    def completing(self) -> list[Work]:
        return [work for work in self.works if work.completes]


@dataclass
class _Run:
    model: Model
    cache: Cache
    on_token: OnToken
    steps: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        self.peers = self.model.peers
        self.most = self.model.config.spec.drafts
        if self.peers.last:
            self.drafter = drafter_of(self.model, self.cache)

    def all_of(self, queue: Queue) -> None:
        """Compute until every request has its last token: as many passes under way as there are stages."""
        under_way: deque[_Pass] = deque()
        while True:
            works = queue.next()
            if works:
                under_way.append(self._begin(works, queue))
            if not self.peers.another_round(queue.unfinished):
                return
            if under_way and (not works or len(under_way) >= self.peers.stages):
                self._settle(under_way.popleft(), queue)

    def _begin(self, works: list[Work], queue: Queue) -> _Pass:
        self.steps += 1
        begun = time.perf_counter()
        step = cached_step(self.cache, [work.tokens for work in works], [work.request.slot for work in works])
        stream = self.model.run(step)
        return _Pass(works) if stream is None else self._decide(works, stream, begun, queue)

    def _decide(self, works: list[Work], stream: Tensor, begun: float, queue: Queue) -> _Pass:
        """On the last stage: what stands, what the drafter makes of it, and the word to the other stages."""
        firsts = [sum(len(work.tokens) for work in works[:index]) for index in range(len(works))]
        rows = [row for work, first in zip(works, firsts, strict=True) for row in work.rows_from(first)]
        logits = self.model.stage.predict(stream[torch.tensor(rows, device=stream.device)]) if rows else stream[:0]
        found: list[list[int]] = []
        taken: list[tuple[Request, list[int]]] = []
        computed: list[Computed] = []
        for work, first in zip(works, firsts, strict=True):
            wanted = len(work.rows_from(0))
            rows_kept = len(work.tokens)
            if work.completes:
                found.append(accept(work.draft, logits[:wanted], work.request.sampler))
                taken.append((work.request, self._take(work, found[-1])))
                rows_kept -= len(work.draft.tokens) - (len(found[-1]) - 1)
                if work.decoding:
                    self.statistics.add(len(work.draft.tokens), len(found[-1]) - 1, len(taken[-1][1]))
            computed.append(Computed(work.request, work.start, rows_kept, first))
            logits = logits[wanted:]
        verified = time.perf_counter()
        self.drafter.observe([one for one in computed if not one.request.finished], stream)
        drafts = self._propose([request for request, _ in taken if not request.finished])
        for request, draft in drafts.items():
            queue.drafted(request, draft)
        if taken:
            self.peers.publish(_packed(found, [drafts.get(request, Draft()) for request, _ in taken], self.most))
        self.statistics.verify_seconds += verified - begun
        self.statistics.draft_seconds += time.perf_counter() - verified
        return _Pass(works, taken)

    def _propose(self, requests: list[Request]) -> dict[Request, Draft]:
        # The last token of a request needs no draft after it.
        room = [min(self.most, one.limit - len(one.tokens) - 1) for one in requests]
        return dict(zip(requests, self.drafter.propose(requests, room) if requests else [], strict=True))

    def _settle(self, done: _Pass, queue: Queue) -> None:
        """The decisions of the oldest pass: known on the last stage, heard on the others."""
        if done.taken is None:
            done.taken = []
            if done.completing:
                heard = self.peers.decided(len(done.completing), _width(self.most))
                for work, (found, draft) in zip(done.completing, _unpacked(heard, self.most), strict=True):
                    done.taken.append((work.request, self._take(work, found)))
                    queue.drafted(work.request, draft)
        for request, tokens in done.taken:
            for token in tokens:
                self.on_token(request.number, token)
        for request in queue.settle(done.works):
            self.cache.reset(request.slot)

    def _take(self, work: Work, found: list[int]) -> list[int]:
        refused = len(work.draft.tokens) - (len(found) - 1)
        self.cache.rewind(work.request.slot, refused)
        work.request.fed -= refused
        return work.request.take(found)


def _width(most: int) -> int:
    # Two counts, up to most + 1 tokens, up to most drafts.
    return 2 * most + 3


def _packed(found: Sequence[Sequence[int]], drafts: Sequence[Draft], most: int) -> Tensor:
    # [requests, width]: how many tokens and drafts, the tokens, the drafts
    rows = [
        [len(tokens), len(draft.tokens), *tokens, *[0] * (most + 1 - len(tokens)), *draft.tokens]
        + [0] * (most - len(draft.tokens))
        for tokens, draft in zip(found, drafts, strict=True)
    ]
    return torch.tensor(rows)


def _unpacked(heard: Tensor, most: int) -> list[tuple[list[int], Draft]]:
    rows = cast("list[list[int]]", cast("Any", heard).tolist())
    return [(row[2 : 2 + row[0]], Draft(tuple(row[3 + most : 3 + most + row[1]]))) for row in rows]
