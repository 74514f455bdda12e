"""Attention of all heads over one shared key-value head, with a sink per head in the denominator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.shapes import split

CHUNK = 256
"""Queries computed at a time, at most: the window of a chunk is a band, and scores stay small."""


def attend(
    queries: Tensor,
    window: Tensor,
    starts: Tensor,
    sink: Tensor,
    entries: Tensor | None = None,
    ready: Tensor | None = None,
    picks: Tensor | None = None,
    decode: Callable[[Tensor, torch.dtype], Tensor] | None = None,
) -> Tensor:
    """Softmax attention over a window and, where there are any, compressed entries; keys are values.

    queries [batch, tokens, heads, width]; window [batch, reach + tokens, width]: query i sees rows i to i + reach,
    those before position 0 excepted; starts [batch]: the first query's position; sink [heads].
    entries [batch, entries, width], of which a query sees the first ready [batch, tokens], or, where
    picks [batch, tokens, count] are given, those (-1: none); decode: turns stored entries into keys.
    Returns [batch, tokens, heads, width].
    """
    tokens = queries.shape[1]
    reach = window.shape[1] - tokens
    outputs: list[Tensor] = []
    if entries is not None and picks is None and decode:
        entries = decode(entries, queries.dtype)
    # a chunk of twice a small window: of longer ones most of the band would be masked
    chunk = min(CHUNK, max(64, 2 * (reach + 1)))
    for start in range(0, tokens, chunk):
        part = slice(start, min(start + chunk, tokens))
        sources = [_window(window, starts, part, reach)]
        if picks is not None:
            assert entries is not None
            keys, hidden = _picked(entries, picks[:, part])
            sources.append((decode(keys, queries.dtype) if decode else keys, hidden))
        elif entries is not None and entries.shape[1]:
            assert ready is not None
            sources.append(_ready(entries, ready[:, part]))
        outputs.append(_attend(queries[:, part], sources, sink))
    return torch.cat(outputs, dim=1)


Source = tuple[Tensor, Tensor]
"""Keys [batch, n, width] (or [batch, tokens, n, width]: each query its own) and hidden [batch, tokens, n]."""


def _window(window: Tensor, starts: Tensor, part: slice, reach: int) -> Source:
    keys = window[:, part.start : part.stop + reach]
    row = torch.arange(keys.shape[1], device=window.device)
    query = torch.arange(part.stop - part.start, device=window.device).unsqueeze(-1)
    band = (row < query) | (row > query + reach)
    before = row + part.start < (reach - starts).unsqueeze(-1)
    return keys, band | before.unsqueeze(1)


def _ready(entries: Tensor, ready: Tensor) -> Source:
    index = torch.arange(entries.shape[1], device=entries.device)
    return entries, index >= ready.unsqueeze(-1)


def _picked(entries: Tensor, picks: Tensor) -> Source:
    batch = torch.arange(entries.shape[0], device=entries.device).view(-1, 1, 1)
    return entries[batch, picks.clamp(min=0)], picks < 0


def _attend(queries: Tensor, sources: list[Source], sink: Tensor) -> Tensor:
    scale = queries.shape[-1] ** -0.5
    scores = [
        _scores(queries, keys).mul_(scale).masked_fill_(hidden.unsqueeze(2), -torch.inf) for keys, hidden in sources
    ]
    column = exact(sink, queries).view(1, 1, -1, 1).expand(*queries.shape[:3], 1)
    weights = torch.softmax(torch.cat((*scores, column), dim=-1), dim=-1).to(queries.dtype)
    parts = split(weights, [score.shape[-1] for score in scores] + [1])
    products = [_mix(part, keys) for part, (keys, _) in zip(parts, sources, strict=False)]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    # [batch, tokens, heads, n], exact
    queries, keys = exact(queries), exact(keys)
    if keys.dim() == 4:
        return torch.matmul(queries, keys.transpose(-1, -2))
    batch, tokens, heads, _ = queries.shape
    return torch.bmm(queries.flatten(1, 2), keys.transpose(1, 2)).view(batch, tokens, heads, -1)


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    # [batch, tokens, heads, width]
    if values.dim() == 4:
        return torch.matmul(weights, values)
    batch, tokens, heads, n = weights.shape
    return torch.bmm(weights.reshape(batch, tokens * heads, n), values).view(batch, tokens, heads, -1)
