"""The memory of a stage: allocated once, addressed by position, rewound for nothing.

A request's rows are rings over its last positions and tables over its windows of tokens. Writing a position again
overwrites its row, and what lies beyond a request's length is never read, so that going back is only a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from builder.components.base.module import TORCH_DTYPES, Component
from builder.components.base.spec import CacheFormat, CacheRows, ComponentSpec
from builder.components.base.step import Block
from builder.components.stage.module import Stage
from builder.kernels.reference.entries import Codec, FP4Keys, FP8Entries, FP8Keys, PlainRows
from builder.kernels.shapes import unflatten


def codec_of(rows: CacheRows) -> Codec:
    """How the declared rows are coded."""
    match rows.code:
        case "fp8_entry":
            return FP8Entries(rows.features, rows.rope, rows.width)
        case "fp8_key":
            return FP8Keys(rows.features)
        case "fp4_key":
            return FP4Keys(rows.features)
        case _:
            return PlainRows(TORCH_DTYPES[rows.dtype])


@dataclass(frozen=True)
class CachedRing:
    """Rows [slots, rows, width]; position p stands in row p mod rows."""

    memory: Tensor
    codec: Codec

    def extend(self, block: Block, rows: Tensor, reach: int) -> Tensor:
        """See ``components.base.step.Ring``."""
        coded = self.codec.encode(rows)
        past = self.memory[block.slot_index.unsqueeze(-1), self._behind(block, reach)]
        self._store(block, coded)
        return self.codec.decode(torch.cat((past, coded), dim=1), rows.dtype)

    def append(self, block: Block, rows: Tensor) -> None:
        """See ``components.base.step.Ring``."""
        self._store(block, self.codec.encode(rows))

    def _store(self, block: Block, coded: Tensor) -> None:
        # Only the last rows of a long block remain.
        size = self.memory.shape[1]
        kept = slice(max(0, block.tokens - size), None)
        index = block.once(("stored", size), lambda: block.positions[:, kept] % size)
        self.memory[block.slot_index.unsqueeze(-1), index] = coded[:, kept]

    def _behind(self, block: Block, reach: int) -> Tensor:
        # The rows of the ``reach`` positions before each sequence: [batch, reach]
        size = self.memory.shape[1]

        def make() -> Tensor:
            return (block.first.unsqueeze(-1) - torch.arange(reach, 0, -1, device=block.first.device)) % size

        return block.once(("behind", size, reach), make)


@dataclass(frozen=True)
class CachedTable:
    """Rows [slots, windows, width]; window w of a request stands in row w."""

    memory: Tensor
    codec: Codec

    def extend(self, block: Block, sequence: Tensor, window: Tensor, rows: Tensor) -> None:
        """See ``components.base.step.Table``."""
        self.memory[block.slot_index[sequence], window] = self.codec.encode(rows)

    def read(self, block: Block, count: int) -> Tensor:
        """See ``components.base.step.Table``; a view where the block's slots follow one another."""
        first = block.slots[0]
        if block.slots == tuple(range(first, first + block.batch)):
            return self.memory[first : first + block.batch, :count]
        return self.memory[block.slot_index, :count]


class Cache:
    """The cache of one stage for ``slots`` requests of up to ``length`` tokens each.

    Its bytes are slots times the plan's cache(length). ``lengths`` are the tokens that each request has now.
    """

    def __init__(self, stage: Stage, form: CacheFormat, slots: int, length: int, device: torch.device) -> None:
        self.form, self.slots, self.length, self.device = form, slots, length, device
        self.lengths = [0] * slots
        self._kept = [0] * slots
        self._rings: dict[tuple[nn.Module, str], CachedRing] = {}
        self._tables: dict[tuple[nn.Module, str], CachedTable] = {}
        for module, rows in declared_rows(stage, form):
            memory = self._allocate(rows)
            if rows.ratio:
                self._tables[module, rows.name] = CachedTable(memory, codec_of(rows))
            else:
                self._rings[module, rows.name] = CachedRing(memory, codec_of(rows))

    def _allocate(self, rows: CacheRows) -> Tensor:
        count = self.length // rows.ratio if rows.ratio else rows.fixed
        return torch.zeros((self.slots, count, rows.width), dtype=TORCH_DTYPES[rows.dtype], device=self.device)

    @property
    def nbytes(self) -> int:
        """What the cache has allocated."""
        return sum(part.memory.nbytes for part in (*self._rings.values(), *self._tables.values()))

    def ring(self, part: nn.Module, name: str) -> CachedRing:
        """See ``components.base.step.Memory``."""
        return self._rings[part, name]

    def table(self, part: nn.Module, name: str) -> CachedTable:
        """See ``components.base.step.Memory``."""
        return self._tables[part, name]

    def rewind(self, slot: int, tokens: int) -> None:
        """Forget a request's last ``tokens`` tokens, at most as many as are drafted per step. Nothing is copied."""
        most = min(self._kept[slot], self.lengths[slot])
        if not 0 <= tokens <= most:
            raise ValueError(f"cannot rewind request {slot} by {tokens} tokens: at most {most}")
        self.lengths[slot] -= tokens
        self._kept[slot] -= tokens

    def grow(self, slot: int, tokens: int) -> int:
        """Count ``tokens`` more that a step computes for a request; returns its length before. Raises ValueError."""
        start = self.lengths[slot]
        if start + tokens > self.length:
            raise ValueError(f"request {slot}: {start + tokens} tokens, the cache holds {self.length}")
        self.lengths[slot] = start + tokens
        self._kept[slot] = min(self.form.drafts, self._kept[slot] + tokens)
        return start

    def reset(self, slot: int) -> None:
        """Make room for another request."""
        self.lengths[slot] = self._kept[slot] = 0


def declared_rows(stage: Stage, form: CacheFormat) -> Iterator[tuple[nn.Module, CacheRows]]:
    """Every part of a stage that keeps rows, with what it declares."""
    for module in stage.modules():
        if isinstance(module, Component):
            part = cast("Component[ComponentSpec]", module)
            for rows in part.spec.cache(form):
                yield part, rows


class NoPast:
    """For training, and for one look at whole sequences: every sequence starts at 0 and nothing outlives the step."""

    def __init__(self) -> None:
        self._tables: dict[tuple[nn.Module, str], FreshTable] = {}

    def ring(self, part: nn.Module, name: str) -> FreshRing:
        """See ``components.base.step.Memory``."""
        del part, name
        return FreshRing()

    def table(self, part: nn.Module, name: str) -> FreshTable:
        """See ``components.base.step.Memory``."""
        return self._tables.setdefault((part, name), FreshTable())


class FreshRing:
    """A ring without a past."""

    def extend(self, block: Block, rows: Tensor, reach: int) -> Tensor:
        """See ``components.base.step.Ring``."""
        del block
        return F.pad(rows, (0, 0, reach, 0))

    def append(self, block: Block, rows: Tensor) -> None:
        """Nothing comes after the step."""


class FreshTable:
    """A table of what the step itself completes."""

    codec = PlainRows(torch.float32)

    def __init__(self) -> None:
        self._rows: Tensor | None = None

    def extend(self, block: Block, sequence: Tensor, window: Tensor, rows: Tensor) -> None:
        """See ``components.base.step.Table``; sequences of a block start together, so that each has as many rows."""
        del sequence, window
        self._rows = unflatten(rows, 0, (block.batch, -1))

    def read(self, block: Block, count: int) -> Tensor:
        """See ``components.base.step.Table``."""
        if self._rows is None:
            return torch.empty((block.batch, 0, 0), device=block.first.device)
        return self._rows[:, :count]
