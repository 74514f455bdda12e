"""Which of the drafted tokens stand: exactly those that leave the target's own output unchanged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from builder.runtime.drafting.base import Draft
from builder.runtime.sampling import Sampler, greedy


def accept(draft: Draft, logits: Tensor, sampler: Sampler) -> list[int]:
    """The tokens that stand, and the one that the target puts after them: 1 to drafts + 1 tokens.

    logits [drafts + 1, vocabulary]: the target's, after the last known token and after each draft. Greedy: a draft
    stands if the target would have chosen it. Sampled (speculative sampling, Leviathan et al. 2023): it stands with
    probability min(1, p / q); the first that does not is replaced by a draw from the rest of p over q.
    """
    if sampler.temperature == 0:
        return _greedy(draft, logits)
    wanted = sampler.distribution(logits).cpu()
    for index, token in enumerate(draft.tokens):
        p = wanted[index]
        q = draft.chances[index] if draft.chances is not None else _certain(token, p)
        if sampler.uniform() * float(q[token]) >= float(p[token]):
            rest = (p - q).clamp(min=0)
            return [*draft.tokens[:index], sampler.draw(rest if float(rest.sum()) > 0 else p)]
    return [*draft.tokens, sampler.draw(wanted[len(draft.tokens)])]


def _greedy(draft: Draft, logits: Tensor) -> list[int]:
    chosen = greedy(logits)
    for index, token in enumerate(draft.tokens):
        if chosen[index] != token:
            return chosen[: index + 1]
    return chosen


def _certain(token: int, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_fill(0, torch.tensor([token]), 1)


@dataclass
class Statistics:
    """What drafting brought. Positions count from 0; a decoding step of one request is one target step."""

    drafted: Counter[int] = field(default_factory=Counter[int])
    accepted: Counter[int] = field(default_factory=Counter[int])
    target_steps: int = 0
    new_tokens: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0

    def add(self, drafts: int, stood: int, taken: int) -> None:
        """One request's part of one step of the target."""
        self.drafted.update(range(drafts))
        self.accepted.update(range(stood))
        self.target_steps += 1
        self.new_tokens += taken

    def __add__(self, other: Statistics) -> Statistics:
        """Of both together."""
        return Statistics(
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.target_steps + other.target_steps,
            self.new_tokens + other.new_tokens,
            self.draft_seconds + other.draft_seconds,
            self.verify_seconds + other.verify_seconds,
        )

    @property
    def accepted_per_step(self) -> float:
        """Drafts that stood, per decoding step of a request."""
        return sum(self.accepted.values()) / self.target_steps if self.target_steps else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As the report has it."""
        positions = sorted(self.drafted)
        return {
            "accepted_per_position": [self.accepted[at] / self.drafted[at] for at in positions],
            "mean_acceptance_length": 1 + self.accepted_per_step,
            "tokens_per_target_step": self.new_tokens / self.target_steps if self.target_steps else 0.0,
            "draft_seconds": self.draft_seconds,
            "verify_seconds": self.verify_seconds,
        }
