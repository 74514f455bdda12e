"""vLLM's cache: every kind of row in pages of one size, and what a request reserves of them at worst."""

from __future__ import annotations

from dataclasses import dataclass

from builder.components.base.spec import CacheFormat, parts
from builder.components.stage.spec import StageSpec
from builder.schema.config import BuildConfig

BLOCK_TOKENS = 256
"""Tokens of a page of entries and keys (``--block-size 256``)."""

ALIGNMENT = 576
"""Rows of one layer in a page are padded to this many bytes."""

WINDOW_TOKENS = 64
"""Tokens of a page of window rows."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share pages. tokens: of a page; nbytes: all layers' rows of it; reach: tokens kept, 0: all."""

    name: str
    layers: int
    tokens: int
    nbytes: int
    reach: int = 0


@dataclass(frozen=True, slots=True)
class Pages:
    """The groups of a stage, and the tokens in flight, which are kept too."""

    groups: tuple[Group, ...]
    in_flight: int

    @property
    def page(self) -> int:
        """Bytes of a page, the largest group's: all others are padded up to it."""
        return max(group.nbytes for group in self.groups)

    def needed(self, length: int) -> int:
        """Pages that one request of ``length`` tokens reserves before it is admitted."""
        return sum(self._pages(group, length) for group in self.groups)

    def _pages(self, group: Group, length: int) -> int:
        if not group.reach:
            return -(-length // group.tokens)
        return -(-min(group.reach - 1 + self.in_flight, length) // group.tokens) + 1

    def bytes_needed(self, length: int) -> int:
        """As bytes."""
        return self.needed(length) * self.page

    def reported_tokens(self, free: int, length: int) -> int:
        """What vLLM logs as the cache's size: requests of ``length`` that fit, a fraction, times ``length``."""
        return max(0, free) // self.page * length // self.needed(length)

    def longest(self, free: int, most: int) -> int:
        """The longest request that is admitted; 0 if none."""
        pages, low, high = max(0, free) // self.page, 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed(middle) <= pages else (low, middle - 1)
        return low


def in_flight(config: BuildConfig) -> int:
    """Tokens scheduled but not settled: pp steps fill the pipeline, and asynchronous scheduling has one more.

    vLLM 0.33.0, ``VllmConfig.max_in_flight_tokens``; it schedules asynchronously unless told otherwise.
    """
    return (config.parallel.pp + 1) * config.runtime.max_num_batched_tokens


def pages_of(stage: StageSpec, form: CacheFormat, in_flight: int) -> Pages:
    """The groups of a stage, drafter included."""
    entries, windows = [0, 0], [0, 0, 0]
    opened: dict[int, list[int]] = {}
    for _, part in parts(stage):
        for rows in part.cache(form):
            if rows.ratio:
                entries = [entries[0] + 1, entries[1] + _aligned(BLOCK_TOKENS // rows.ratio * rows.row_bytes)]
            elif rows.name == "open":
                reach = rows.fixed - form.drafts
                tokens = 4 if reach < WINDOW_TOKENS else 8
                found = opened.setdefault(reach, [0, 0, tokens])
                found[0], found[1] = found[0] + 1, found[1] + _aligned(tokens * rows.row_bytes)
            else:
                size = _aligned(WINDOW_TOKENS * rows.row_bytes)
                windows = [windows[0] + 1, size, rows.fixed - form.drafts]
    groups = [Group("entries", entries[0], BLOCK_TOKENS, entries[1])] if entries[0] else []
    groups += _window_groups(windows[0], windows[1], windows[2], entries[1])
    groups += [Group("open", count, tokens, size, reach) for reach, (count, size, tokens) in sorted(opened.items())]
    return Pages(tuple(groups), in_flight)


def _window_groups(layers: int, size: int, reach: int, page: int) -> list[Group]:
    # As many groups as it takes for each to fit in a page of entries; the layers are dealt out evenly.
    ways = max(1, -(-layers * size // page)) if page else 1
    shares = [layers // ways + (index < layers % ways) for index in range(ways)]
    return [Group("window", share, WINDOW_TOKENS, share * size, reach) for share in shares if share]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
