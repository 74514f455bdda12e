"""Attention, one query at a time, over the rows that it sees: no masks, and no copies of plain keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import attention as reference
from builder.kernels.reference.attention import CHUNK
from builder.kernels.reference.precision import exact

Decode = Callable[[Tensor, torch.dtype], Tensor]


def attend(
    queries: Tensor,
    window: Tensor,
    starts: Tensor,
    sink: Tensor,
    entries: Tensor | None = None,
    ready: Tensor | None = None,
    picks: Tensor | None = None,
    decode: Decode | None = None,
) -> Tensor:
    """As ``reference.attention.attend``."""
    if not usable(queries):
        return reference.attend(queries, window, starts, sink, entries, ready, picks, decode)
    if entries is None or not entries.shape[1]:
        return _attend(queries, window, starts, sink)
    if entries.dtype == queries.dtype:
        return _attend(queries, window, starts, sink, entries, ready, picks)
    assert decode is not None
    if picks is None:
        return _attend(queries, window, starts, sink, decode(entries, queries.dtype), ready)
    return _decoded(queries, window, starts, sink, entries, picks, decode)


def _attend(
    queries: Tensor,
    window: Tensor,
    starts: Tensor,
    sink: Tensor,
    entries: Tensor | None = None,
    ready: Tensor | None = None,
    picks: Tensor | None = None,
) -> Tensor:
    near = window.to(queries.dtype).contiguous()
    return operations().attend(queries.contiguous(), near, starts, exact(sink, queries), entries, ready, picks)


def _decoded(
    queries: Tensor, window: Tensor, starts: Tensor, sink: Tensor, entries: Tensor, picks: Tensor, decode: Decode
) -> Tensor:
    # Only what is picked is decoded, some queries at a time.
    tokens, reach = queries.shape[1], window.shape[1] - queries.shape[1]
    batch = torch.arange(entries.shape[0], device=entries.device).view(-1, 1, 1)
    outputs: list[Tensor] = []
    for start in range(0, tokens, CHUNK):
        part = slice(start, min(start + CHUNK, tokens))
        picked = picks[:, part].contiguous()
        own = decode(entries[batch, picked.clamp(min=0)], queries.dtype)
        near = window[:, part.start : part.stop + reach]
        outputs.append(_attend(queries[:, part], near, starts + start, sink, own, None, picked))
    return torch.cat(outputs, dim=1)
