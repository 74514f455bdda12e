"""The next token from logits: greedy, or drawn with temperature and top_p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from builder.kernels.reference.selection import largest_value


@dataclass
class Sampler:
    """One request's choice of tokens. A request has its own random numbers, so that others do not change its tokens.

    temperature 0 is greedy, the lowest token among equals; top_p keeps the smallest set of that probability.
    """

    temperature: float
    top_p: float
    seed: int
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def distribution(self, logits: Tensor) -> Tensor:
        """The probabilities a token is drawn from: [..., vocabulary] -> [..., vocabulary] in float64."""
        wide = logits.double()
        # From the largest down: even the smallest temperature then divides no number to infinity.
        probabilities = torch.softmax((wide - wide.amax(-1, keepdim=True)) / self.temperature, dim=-1)
        if self.top_p >= 1:
            return probabilities
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        # A token stays when those before it do not reach top_p yet.
        dropped = ordered.cumsum(-1) - ordered >= self.top_p
        kept = torch.zeros_like(probabilities).scatter(-1, order, ordered.masked_fill(dropped, 0))
        return kept / kept.sum(-1, keepdim=True)

    def choose(self, logits: Tensor) -> int:
        """One token from logits [vocabulary]."""
        if self.temperature == 0:
            return int(largest_value(logits))
        return self.draw(self.distribution(logits))

    def uniform(self) -> float:
        """A number from 0 to 1."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))

    def draw(self, probabilities: Tensor) -> int:
        """One token by its share: [vocabulary], not negative, not all 0."""
        point = self.uniform()
        reached = probabilities.cpu().double().cumsum(-1)
        token = int(torch.searchsorted(reached, reached[-1:] * point, right=True))
        return min(token, int(probabilities.nonzero()[-1]))


def choose_each(samplers: Sequence[Sampler], logits: Tensor) -> list[tuple[int, Tensor | None]]:
    """A token for each row of logits [requests, vocabulary], and the probabilities it was drawn from.

    The probabilities [vocabulary] are on the processor; None where the choice is greedy.
    """
    if all(sampler.temperature == 0 for sampler in samplers):
        return [(token, None) for token in greedy(logits)]
    found: list[tuple[int, Tensor | None]] = []
    for sampler, row in zip(samplers, logits, strict=True):
        if sampler.temperature == 0:
            found += [(token, None) for token in greedy(row.unsqueeze(0))]
        else:
            chances = sampler.distribution(row).cpu()
            found.append((sampler.draw(chances), chances))
    return found


def greedy(logits: Tensor) -> list[int]:
    """The best token of each row of [rows, vocabulary], the lowest among equals."""
    return cast("list[int]", cast("Any", largest_value(logits)).tolist())
