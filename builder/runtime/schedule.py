"""Which tokens of which requests go through the model next. It follows from what is known alike on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.runtime.drafting.base import Draft
from builder.runtime.request import Request


@dataclass(frozen=True)
class Work:
    """What a pass computes of one request: the first ``known`` of the tokens it waits for, then drafts.

    start: how many tokens it had before; completes: all it waits for is in, so that what follows is the target's
    choice; decoding: its prompt was computed before.
    """

    request: Request
    start: int
    known: int
    tokens: list[int]
    draft: Draft
    completes: bool
    decoding: bool

    @classmethod
    def of(cls, request: Request, draft: Draft, budget: int) -> Work:
        """As much of a request as ``budget`` tokens allow."""
        waiting = request.waiting
        known = min(len(waiting), budget)
        kept = min(len(draft.tokens), budget - known)
        draft = Draft(draft.tokens[:kept], draft.chances[:kept] if draft.chances is not None else None)
        tokens = [*waiting[:known], *draft.tokens]
        return cls(request, request.fed, known, tokens, draft, known == len(waiting), request.decoding)

    def rows_from(self, first: int) -> range:
        """The rows whose logits are wanted: after the last known token, and after each draft."""
        return range(first + self.known - 1, first + len(self.tokens)) if self.completes else range(0)


class Queue:
    """Requests on their way. Those whose tokens are being decided wait; parts of a prompt may follow one another.

    stages: how many passes are to be under way at once, so that no stage is idle; budget: tokens of a pass.
    """

    def __init__(self, requests: Sequence[Request], slots: int, budget: int, stages: int) -> None:
        self.budget, self.stages = budget, stages
        self._waiting, self._running, self._free = list(requests), list[Request](), list(range(slots))
        self._deciding: set[Request] = set()
        self._drafts: dict[Request, Draft] = {}

    @property
    def unfinished(self) -> bool:
        """Somebody still has a token to come."""
        return bool(self._waiting or self._running)

    def next(self) -> list[Work]:
        """The next pass; nothing where everybody waits for a decision."""
        while self._waiting and self._free:
            request = self._waiting.pop(0)
            request.slot = self._free.pop(0)
            self._running.append(request)
        ready = [one for one in self._running if one not in self._deciding]
        works = self._within(ready)
        for work in works:
            work.request.fed += len(work.tokens)
            if work.completes:
                self._deciding.add(work.request)
                self._drafts.pop(work.request, None)
        # Neighbours with equally many tokens are computed together.
        return sorted(works, key=lambda work: (len(work.tokens), work.request.slot))

    def _within(self, ready: Sequence[Request]) -> list[Work]:
        # Decoding requests first: they wait for one token each, so that a long prompt does not hold them up.
        decoding = [one for one in ready if one.decoding][: -(-len(self._running) // self.stages)]
        works: list[Work] = []
        budget = self.budget
        for request in (*decoding, *(one for one in ready if not one.decoding)):
            if budget:
                works.append(Work.of(request, self._drafts.get(request, Draft()), budget))
                budget -= len(works[-1].tokens)
        return works

    def drafted(self, request: Request, draft: Draft) -> None:
        """What follows a request's tokens, perhaps: for its next pass."""
        self._drafts[request] = draft

    def settle(self, works: Sequence[Work]) -> list[Request]:
        """The decisions of a pass are known. Returns the requests that are finished: their places are free."""
        completed = [work.request for work in works if work.completes]
        self._deciding.difference_update(completed)
        finished = [one for one in completed if one.finished]
        self._free += [one.slot for one in finished]
        self._running = [one for one in self._running if one not in finished]
        return finished
