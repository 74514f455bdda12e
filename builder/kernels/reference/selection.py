"""The largest of a row, the lowest index first among equals, whatever the row's width."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.kernels.shapes import unflatten


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest of each row, in rising order: [..., n] -> [..., count], count <= n.

    torch.topk alone does not say which of several equal scores it takes.
    """
    scores = _ordered(scores)
    least = scores.topk(count, dim=-1).values[..., -1:]
    above, equal = scores > least, scores == least
    missing = count - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= missing))
    return unflatten(chosen.nonzero()[:, -1], 0, (*scores.shape[:-1], count))


def largest_value(scores: Tensor) -> Tensor:
    """Index of the largest of each row, the lowest among equals: [..., n] -> [...]."""
    scores = _ordered(scores)
    best = scores.amax(-1, keepdim=True)
    index = torch.arange(scores.shape[-1], device=scores.device)
    return torch.where(scores == best, index, scores.shape[-1]).amin(-1)


def _ordered(scores: Tensor) -> Tensor:
    # A NaN compares with nothing; as the least of all it cannot be picked before a number.
    return scores.masked_fill(scores.isnan(), -torch.inf)
