"""Steps: which tokens of which requests go through a stage together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from builder.components.base.step import Block, Memory, Step
from builder.runtime.cache import Cache


def make_step(
    memory: Memory,
    tokens: Sequence[Sequence[int]],
    starts: Sequence[int],
    slots: Sequence[int],
    device: torch.device,
    stash_row: int = 0,
) -> Step:
    """A step over ``tokens[i]`` of the request in ``slots[i]`` from position ``starts[i]`` on, each at least one token.

    Neighbours with equally many tokens share a block. Rows of the step are the requests' tokens in the order given.
    """
    ids = torch.tensor([token for part in tokens for token in part], device=device)
    positions = torch.cat(
        [torch.arange(start, start + len(part), device=device) for part, start in zip(tokens, starts, strict=True)]
    )
    blocks: list[Block] = []
    row = 0
    for length, group in groupby(range(len(tokens)), key=lambda index: len(tokens[index])):
        members = list(group)
        blocks.append(make_block(row, length, [slots[i] for i in members], [starts[i] for i in members], device=device))
        row += length * len(members)
    return Step(ids, positions, tuple(blocks), memory, stash_row)


def make_block(row: int, length: int, slots: Sequence[int], starts: Sequence[int], device: torch.device) -> Block:
    """Requests of ``length`` tokens each, from row ``row`` of the step on."""
    return Block(
        rows=slice(row, row + length * len(slots)),
        slots=tuple(slots),
        starts=tuple(starts),
        tokens=length,
        first=torch.tensor(starts, device=device),
        slot_index=torch.tensor(slots, device=device),
    )


def cached_step(cache: Cache, tokens: Sequence[Sequence[int]], slots: Sequence[int], stash_row: int = 0) -> Step:
    """The next tokens of requests in a cache, which then has them. More than it was made for is an error."""
    starts = [cache.grow(slot, len(part)) for part, slot in zip(tokens, slots, strict=True)]
    return make_step(cache, tokens, starts, slots, cache.device, stash_row)


def last_rows(step: Step) -> Tensor:
    """The row of each request's last token, in the order of the step: [requests]."""
    rows = [block.rows.start + (index + 1) * block.tokens - 1 for block in step.blocks for index in range(block.batch)]
    return torch.tensor(rows, device=step.ids.device)
