"""A pipeline stage: what one rank holds, as a tree of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec


@dataclass(frozen=True, slots=True)
class StageSpec(ComponentSpec):
    """Layers ``first`` to ``last`` and what stands before and after them; parts in the order of computation.

    reads, writes: how the stage begins (token ids or a stream) and ends (a stream or logits).
    streams, activation: hc_mult, and the dtype of the stream.
    """

    module: ClassVar[str] = "builder.components.stage.module:Stage"

    first: int
    last: int
    members: tuple[tuple[str, ComponentSpec], ...]
    reads: str
    writes: str
    streams: int
    activation: str

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return self.members
