"""Scores of the lightning indexer, and its choice of entries."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.reference.selection import largest

CHUNK = 256
"""Queries scored at a time, so that no score is held per head for all tokens."""


def pick(queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
    """The ``count`` best entries of each query among its first ``ready``; -1 where there are fewer.

    queries [batch, tokens, heads, width]; keys [batch, entries, width]; weights [batch, tokens, heads];
    ready [batch, tokens] -> [batch, tokens, count], count <= entries.
    """
    index = torch.arange(keys.shape[1], device=keys.device)
    wide_keys, picks = exact(keys), list[Tensor]()
    for start in range(0, queries.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        scored = _scores(exact(queries[:, part]), wide_keys, exact(weights[:, part]))
        limit = ready[:, part].unsqueeze(-1)
        chosen = largest(scored.masked_fill(index >= limit, -torch.inf), count)
        picks.append(torch.where(chosen < limit, chosen, -1))
    return torch.cat(picks, dim=1)


def _scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    # sum over heads of relu(q . k) * weight: [batch, tokens, entries]
    batch, tokens, heads, _ = queries.shape
    products = torch.bmm(queries.flatten(1, 2), keys.transpose(1, 2)).view(batch, tokens, heads, -1)
    return torch.einsum("bthe,bth->bte", products.relu_(), weights)
