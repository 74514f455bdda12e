"""The choice of entries: products by torch, the rest in one pass over them."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import indexer as reference
from builder.kernels.reference.indexer import CHUNK, scores
from builder.kernels.reference.precision import exact

__all__ = ["pick", "scores"]


def pick(queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
    """As ``reference.indexer.pick``."""
    if not usable(queries):
        return reference.pick(queries, keys, weights, ready, count)
    wide_keys = exact(keys).transpose(1, 2)
    picks = [
        _pick(exact(queries[:, part]), wide_keys, exact(weights[:, part]), ready[:, part], count)
        for part in (slice(start, start + CHUNK) for start in range(0, queries.shape[1], CHUNK))
    ]
    return torch.cat(picks, dim=1)


def _pick(queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
    # keys [batch, width, entries]
    batch, tokens, heads, _ = queries.shape
    products = torch.bmm(queries.flatten(1, 2), keys).view(batch * tokens, heads, -1)
    picks = operations().pick(products, weights.reshape(-1, heads), ready.reshape(-1), count)
    return picks.view(batch, tokens, count)
