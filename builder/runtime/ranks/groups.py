"""Ranks that compute one thing together, and what they do with each other's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from builder.schema.parallel import ParallelConfig

dist: Any = torch.distributed
"""Much of it carries no types."""


class Group:
    """Some ranks of the world, in their order. ``sent``: bytes this rank has contributed to what they exchanged."""

    def __init__(self, ranks: Sequence[int], rank: int, handle: Any) -> None:
        self.size, self.index = len(ranks), list(ranks).index(rank)
        self._handle = handle
        self.sent = 0

    def add(self, partial: Tensor) -> Tensor:
        """The sum of every rank's tensor, the same on all of them."""
        total = partial.contiguous()
        self.sent += total.nbytes
        dist.all_reduce(total, group=self._handle)
        return total

    def concatenate(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """Every rank's slice of the last dimension, ``sizes`` wide each, side by side."""
        widest = max(sizes)
        padded = part.new_zeros((*part.shape[:-1], widest))
        padded[..., : part.shape[-1]] = part
        self.sent += padded.nbytes
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self._handle)
        return torch.cat([one[..., :size] for one, size in zip(parts, sizes, strict=True)], dim=-1)

    def table(self, row: Sequence[int], device: torch.device) -> list[list[int]]:
        """Every rank's row of numbers, all equally long."""
        mine = torch.tensor(row, device=device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self.sent += mine.nbytes
        dist.all_gather(rows, mine, group=self._handle)
        return cast("list[list[int]]", cast("Any", torch.stack(rows)).tolist())

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send ``sent[r]`` rows to rank r, in order; returns the ``received[r]`` rows that each rank r sent here.

        rows [sum(sent), width] in bytes (uint8) or any number type that collectives know.
        """
        self.sent += (rows.shape[0] - sent[self.index]) * rows[:1].nbytes
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=self._handle)
        return out


def tensor_parallel(parallel: ParallelConfig, rank: int) -> Group | None:
    """The ranks that share this rank's tensors; None where nobody does. Every rank of the world has to call it."""
    if parallel.tp == 1:
        return None
    return _own(_blocks(parallel.world_size, parallel.tp), rank)


def expert_parallel(parallel: ParallelConfig, rank: int) -> Group | None:
    """The ranks that hold this rank's experts between them; None where it has them all. Called by every rank."""
    if parallel.ep == 1:
        return None
    return _own(_blocks(parallel.world_size, parallel.ep), rank)


def _blocks(world: int, size: int) -> list[list[int]]:
    # Neighbours form a group: rank = ((pp * dp_size) + dp) * tp_size + tp, and ep divides dp * tp.
    return [list(range(first, first + size)) for first in range(0, world, size)]


def _own(blocks: Sequence[Sequence[int]], rank: int) -> Group:
    # Every rank makes every group, in the same order.
    handles = [dist.new_group(list(block)) for block in blocks]
    return next(Group(block, rank, handle) for block, handle in zip(blocks, handles, strict=True) if rank in block)
