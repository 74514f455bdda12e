"""Prompt look-up: what followed the last few tokens the last time they stood in the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.request import Request


@dataclass(frozen=True)
class NgramDrafter:
    """Longest match first, of ``longest`` down to ``shortest`` tokens; among equally long ones the latest."""

    shortest: int
    longest: int

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        return [Draft(tuple(self.look_up(one.sequence, most))) for one, most in zip(requests, room, strict=True)]

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``; the sequence itself is all that is needed."""

    def look_up(self, sequence: list[int], most: int) -> list[int]:
        """The tokens that followed, at most ``most``."""
        for size in range(min(self.longest, len(sequence) - 1), self.shortest - 1, -1):
            last = sequence[-size:]
            for start in range(len(sequence) - size - 1, -1, -1):
                if sequence[start : start + size] == last:
                    return sequence[start + size : start + size + most]
        return []
