"""Prompt look-up: what followed the last few tokens the last time they stood in the sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft, Drafter
from builder.runtime.model import Model
from builder.runtime.request import Request
from builder.schema.spec import NgramSpecConfig

_TOKEN = "q"
_WIDTH = array(_TOKEN).itemsize


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
        # As bytes, which are searched a hundred times faster than a list of a long prompt's tokens.
        data = array(_TOKEN, sequence).tobytes()
        for size in range(min(self.longest, len(sequence) - 1), self.shortest - 1, -1):
            start = _last_before_the_end(data, data[-size * _WIDTH :])
            if start is not None:
                return sequence[start + size : start + size + most]
        return []


def _last_before_the_end(data: bytes, wanted: bytes) -> int | None:
    # Where the tokens stood the last time before: something follows them, and they begin where a token does.
    end = len(data) - _WIDTH
    while (at := data.rfind(wanted, 0, end)) % _WIDTH:
        if at < 0:
            return None
        end = at + len(wanted) - 1
    return at // _WIDTH


def drafter(model: Model, cache: Cache) -> Drafter:
    """With the lengths that the configuration names."""
    del cache
    spec = model.config.spec
    assert isinstance(spec, NgramSpecConfig), "spec=ngram has its own keys"
    return NgramDrafter(spec.min_ngram, spec.max_ngram)
