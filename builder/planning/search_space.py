"""What a search looks through: every axis with its values, read from ``search.*``, and everything wrong with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from builder.errors import ConfigError, Problem
from builder.planning.search_options import ALL, devices_of, specs_of
from builder.schema.config import BuildConfig
from builder.schema.fields import one_of
from builder.schema.groups import CACHE_LAYOUTS, RuntimeConfig, SearchConfig
from builder.schema.hardware import HardwareConfig
from builder.schema.parallel import AXES, ParallelConfig
from builder.schema.spec import SpecConfig

T = TypeVar("T")

DEFAULT_GPUS = 64
MOST_PLANS = 200_000
SHARED_EXPERT = ("sharded", "replicated")
_LIMITS = {
    "counts": 65_536,
    **dict.fromkeys(AXES, 65_536),
    "num_speculative_tokens": 1024,
    "max_num_batched_tokens": 1 << 30,
    "max_num_seqs": 1 << 30,
}


@dataclass(frozen=True)
class Space:
    """Every axis of a search. Device counts above ``gpus`` are not looked at."""

    config: BuildConfig
    gpus: int
    devices: tuple[HardwareConfig, ...]
    parallels: tuple[ParallelConfig, ...]
    specs: tuple[SpecConfig, ...]
    caches: tuple[str, ...]
    runtimes: tuple[RuntimeConfig, ...]

    @property
    def size(self) -> int:
        """Plans to look at."""
        axes: tuple[Sequence[Any], ...] = (self.devices, self.parallels, self.specs, self.caches, self.runtimes)
        count = 1
        for axis in axes:
            count *= len(axis)
        return count


def space_of(config: BuildConfig) -> Space:
    """The space of ``config.search``. Raises ConfigError with everything that is wrong with the limits."""
    search = config.search
    assert search is not None, "task=search brings its keys"
    found = [*_number_problems(search), *_word_problems(search), *_limit_problems(config, search)]
    devices = devices_of(config, search.devices, found)
    specs = specs_of(config, search, found)
    if found:
        raise ConfigError(found)
    gpus = search.gpus or DEFAULT_GPUS
    # More than the limit are not even written down.
    parallels = tuple(islice(_parallels(config.parallel, search, gpus), MOST_PLANS + 1))
    if not parallels:
        raise ConfigError([_nothing_left(search, gpus)])
    runtimes = tuple(_runtimes(config, search))
    space = Space(config, gpus, devices, parallels, specs, _caches(config, search), runtimes)
    if space.size > MOST_PLANS:
        works = "give shorter lists, or a lower search.gpus"
        counted = len(space.parallels) <= MOST_PLANS
        reason = f"asks for {space.size:,} plans, above" if counted else "asks for more plans than the limit,"
        raise ConfigError([Problem("task", "search", f"{reason} {MOST_PLANS:,}", works)])
    return space


def _number_problems(search: SearchConfig) -> Iterator[Problem]:
    for name, most in _LIMITS.items():
        values: list[int] | None = getattr(search, name)
        if values is None:
            continue
        if not values:
            yield Problem(f"search.{name}", "[]", "is empty", "give values, or leave it out")
        wrong = [value for value in values if not 1 <= value <= most]
        if wrong:
            yield Problem(f"search.{name}", values, f"{wrong[0]} is out of range", f"use 1 to {most:,}")


def _word_problems(search: SearchConfig) -> Iterator[Problem]:
    for name, words in (("cache", (*CACHE_LAYOUTS, ALL)), ("shared_expert", SHARED_EXPERT)):
        values: list[str] | None = getattr(search, name)
        if values is None:
            continue
        if not values:
            yield Problem(f"search.{name}", "[]", "is empty", "give values, or leave it out")
        for value in values:
            if value not in words:
                yield Problem(f"search.{name}", value, "is not known", one_of(words, value))


def _limit_problems(config: BuildConfig, search: SearchConfig) -> Iterator[Problem]:
    length, most = search.max_model_len, config.model.max_position_embeddings
    if length is not None and length > most:
        name = config.model.name
        reason = f"{name} has max_position_embeddings={most}"
        yield Problem("search.max_model_len", length, reason, f"use at most {most}")
    if length is not None and search.ask == "context":
        reason = "search.ask=context looks for the length itself"
        yield Problem("search.max_model_len", length, reason, "leave it out")
    gpus = search.gpus or DEFAULT_GPUS
    if search.counts and min(search.counts) > gpus:
        reason = f"every count is above the limit, search.gpus={gpus}"
        yield Problem("search.counts", search.counts, reason, f"give search.gpus={min(search.counts)}, or lower counts")


def _nothing_left(search: SearchConfig, gpus: int) -> Problem:
    given = {axis: getattr(search, axis) for axis in (*AXES, "counts") if getattr(search, axis)}
    words = " ".join(f"search.{axis}={values}" for axis, values in given.items())
    reason = f"no pp·tp·dp of {words} is a device count from 1 to {gpus} whose dp·tp an ep divides"
    return Problem("search.gpus", gpus, reason, "raise search.gpus, or leave a list out")


def _sizes(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, …: powers of two, and once and a half of them."""
    found = {size for power in range(most.bit_length()) for size in (1 << power, 3 << power)}
    return sorted(size for size in found if size <= most)


def _parallels(base: ParallelConfig, search: SearchConfig, gpus: int) -> Iterator[ParallelConfig]:
    counts = set(search.counts) if search.counts else None
    for pp in _given(search.pp, _sizes(gpus)):
        for tp in _given(search.tp, [size for size in _sizes(gpus) if size & (size - 1) == 0]):
            for dp in _given(search.dp, _sizes(gpus)):
                world = pp * tp * dp
                if world > gpus or (counts is not None and world not in counts):
                    continue
                for ep in _given(search.ep, _divisors(dp * tp)):
                    for shared in _given(search.shared_expert, [base.shared_expert]):
                        yield replace(base, pp=pp, tp=tp, ep=ep, dp=dp, shared_expert=shared)


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def _given(values: list[T] | None, default: list[T]) -> list[T]:
    return default if values is None else list(dict.fromkeys(values))


def _caches(config: BuildConfig, search: SearchConfig) -> tuple[str, ...]:
    layouts = _given(search.cache, [config.cache.layout])
    return CACHE_LAYOUTS if ALL in layouts else tuple(layouts)


def _runtimes(config: BuildConfig, search: SearchConfig) -> Iterator[RuntimeConfig]:
    runtime = config.runtime
    length = search.max_model_len or runtime.max_model_len
    for tokens in _given(search.max_num_batched_tokens, [runtime.max_num_batched_tokens]):
        for seqs in _given(search.max_num_seqs, [runtime.max_num_seqs]):
            yield dataclasses.replace(runtime, max_num_batched_tokens=tokens, max_num_seqs=seqs, max_model_len=length)
