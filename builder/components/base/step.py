"""What a forward pass is told beside its input: where each token stands, and where its past is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from builder.kernels.shapes import unflatten

if TYPE_CHECKING:
    from builder.kernels.reference.entries import Codec


@dataclass(frozen=True)
class Block:
    """Sequences of a step with equally many tokens: rows ``rows`` of the step, [batch, tokens] of them.

    slots: the sequences' places in the cache; starts: their first positions, as numbers and [batch] on the device.
    """

    rows: slice
    slots: tuple[int, ...]
    starts: tuple[int, ...]
    tokens: int
    first: Tensor
    slot_index: Tensor
    known: dict[object, Tensor] = field(default_factory=dict[object, Tensor], compare=False, repr=False)

    @property
    def batch(self) -> int:
        """How many sequences."""
        return len(self.slots)

    def of(self, x: Tensor) -> Tensor:
        """The block's rows of a step's tensor: [all tokens, ...] -> [batch, tokens, ...]."""
        return unflatten(x[self.rows], 0, (self.batch, self.tokens))

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """What every layer would compute alike: made for the first that asks, kept for the others."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    @property
    def positions(self) -> Tensor:
        """[batch, tokens]."""
        return self.once("positions", self._positions)

    def _positions(self) -> Tensor:
        return self.first.unsqueeze(-1) + torch.arange(self.tokens, device=self.first.device)

    def ready(self, ratio: int) -> Tensor:
        """How many entries of ``ratio`` tokens each query may see: [batch, tokens]."""
        return self.once(("ready", ratio), lambda: (self.positions + 1) // ratio)

    def places(self, ratio: int) -> Tensor:
        """Where in its window of ``ratio`` each token stands: [batch, tokens]."""
        return self.once(("places", ratio), lambda: self.positions % ratio)

    def most_ready(self, ratio: int) -> int:
        """The largest of ``ready``."""
        return (max(self.starts) + self.tokens) // ratio

    def ends(self, ratio: int) -> tuple[list[int], list[int]]:
        """The tokens that complete a window of ``ratio``: sequence in the block, and token in the sequence."""
        found = [
            (row, token)
            for row, start in enumerate(self.starts)
            for token in range(ratio - 1 - start % ratio, self.tokens, ratio)
        ]
        return [row for row, _ in found], [token for _, token in found]


class Ring(Protocol):
    """Rows of the last tokens, addressed by position."""

    def extend(self, block: Block, rows: Tensor, reach: int) -> Tensor:
        """Store the block's rows [batch, tokens, features]; return them behind the ``reach`` before each sequence.

        Returns [batch, reach + tokens, features], decoded in the dtype of ``rows``; rows before position 0 are noise.
        """
        ...

    def append(self, block: Block, rows: Tensor) -> None:
        """Store the block's rows [batch, tokens, features]."""
        ...


class Table(Protocol):
    """One row per window of tokens, addressed by the window's number."""

    @property
    def codec(self) -> Codec:
        """How rows are coded."""
        ...

    def extend(self, block: Block, sequence: Tensor, window: Tensor, rows: Tensor) -> None:
        """Store new rows [n, features] as row ``window`` [n] of the block's sequence ``sequence`` [n]."""
        ...

    def read(self, block: Block, count: int) -> Tensor:
        """The first ``count`` rows of each sequence, still coded: [batch, count, width]."""
        ...


class Memory(Protocol):
    """Where the parts of a stage keep the past."""

    def ring(self, part: nn.Module, name: str) -> Ring:
        """The part's rows of the last tokens."""
        ...

    def table(self, part: nn.Module, name: str) -> Table:
        """The part's rows per window."""
        ...


@dataclass
class Step:
    """One forward pass over ``tokens`` tokens of several sequences.

    ids [tokens]: the token ids, on every stage that embeds or has hash layers; positions [tokens];
    stash_row: the row of the MTP stash that the first token is written to (micro-batches follow one another there).
    """

    ids: Tensor
    positions: Tensor
    blocks: tuple[Block, ...]
    memory: Memory
    stash_row: int = 0
    angles: dict[object, tuple[Tensor, Tensor]] = field(default_factory=dict[object, tuple[Tensor, Tensor]])
