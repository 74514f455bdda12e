"""Scores of the lightning indexer, and its choice of entries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.reference.selection import largest

Scores = Callable[[Tensor, Tensor, Tensor], Tensor]

CHUNK = 256
"""Queries scored at a time, so that no score is held per head for all tokens."""


def pick(queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
    """The ``count`` best entries of each query among its first ``ready``; -1 where there are fewer.

    queries [batch, tokens, heads, width]; keys [batch, entries, width]; weights [batch, tokens, heads];
    ready [batch, tokens] -> [batch, tokens, count], count <= entries.
    """
    return pick_by(scores, queries, keys, weights, ready, count)


def pick_by(score: Scores, queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
    """``pick`` with another way to score, which takes and returns what ``scores`` does."""
    wide_keys = exact(keys)
    picks = [
        choose(score(queries[:, part], wide_keys, weights[:, part]), ready[:, part], count)
        for part in (slice(start, start + CHUNK) for start in range(0, queries.shape[1], CHUNK))
    ]
    return torch.cat(picks, dim=1)


def scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Sum over heads of relu(q . k) * weight, exact.

    queries [batch, tokens, heads, width]; keys [batch, entries, width]; weights [batch, tokens, heads]
    -> [batch, tokens, entries].
    """
    batch, tokens, heads, _ = queries.shape
    products = torch.bmm(exact(queries).flatten(1, 2), exact(keys).transpose(1, 2)).view(batch, tokens, heads, -1)
    return torch.einsum("bthe,bth->bte", products.relu_(), exact(weights))


def choose(scored: Tensor, ready: Tensor, count: int) -> Tensor:
    """What ``pick`` picks, from scores [batch, tokens, entries]."""
    limit = ready.unsqueeze(-1)
    index = torch.arange(scored.shape[-1], device=scored.device)
    chosen = largest(scored.masked_fill(index >= limit, -torch.inf), count)
    return torch.where(chosen < limit, chosen, -1)
