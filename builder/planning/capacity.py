"""How much a rank holds beside what it is made of: tokens, requests, the longest context."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from builder.assembly.measure import CacheCost
from builder.planning.engine_terms_pages import Pages
from builder.planning.engine_terms_pools import Pools
from builder.schema.config import BuildConfig

GIVEN = ("graphs", "communication", "other")
"""Lines of a rank's bytes that nobody can derive: the user gives them."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """longest_request: tokens of one request alone; requests: of max_model_len; tokens: max_num_seqs equal requests."""

    longest_request: int
    tokens: int
    requests: int

    def to_dict(self) -> dict[str, int]:
        """As the report has it."""
        return asdict(self)


def budget_bytes(config: BuildConfig) -> int | None:
    """floor(memory_fraction · memory_bytes) - reserve_bytes; None where no memory is judged (cpu)."""
    memory = config.hardware.total_bytes
    if memory is None:
        return None
    return math.floor(config.runtime.memory_fraction * memory) - config.runtime.reserve_bytes


def capacity(config: BuildConfig, cost: CacheCost, free: int) -> Capacity:
    """What ``free`` bytes hold."""
    runtime, most = config.runtime, config.model.max_position_embeddings
    full = cost.nbytes(runtime.max_model_len)
    longest = longest_within(cost, free, most)
    each = longest_within(cost, free // runtime.max_num_seqs, most)
    return Capacity(longest, runtime.max_num_seqs * each, max(0, free // full) if full else 0)


def longest_within(cost: CacheCost, free: int, most: int) -> int:
    """The largest n <= most with cache(n) <= free; 0 if there is none."""
    if cost.nbytes(0) > free:
        return 0
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost.nbytes(middle) <= free else (low, middle - 1)
    return low


def given_bytes(config: BuildConfig) -> dict[str, int]:
    """Captured graphs, communication buffers and other processes, as the user gives them."""
    runtime = config.runtime
    return dict(zip(GIVEN, (runtime.graph_bytes, runtime.communication_bytes, runtime.other_bytes), strict=True))


def admission(length: int, cost: CacheCost, pages: Pages | None, free: int) -> dict[str, int]:
    """Requests admitted when each reserves ``length`` tokens; with an engine's pages, as that engine counts them."""
    each = pages.bytes_needed(length) if pages else cost.nbytes(length)
    requests = max(0, free // each) if each else 0
    tokens = pages.reported_tokens(free, length) if pages else requests * length
    return {"bytes_per_request": each, "requests": requests, "tokens": tokens}


def admission_in_pools(length: int, pools: Pools, available: int) -> dict[str, int]:
    """As SGLang counts: a request takes its tokens of the full pool."""
    tokens, each = pools.tokens(available), math.ceil(pools.per_token * length)
    return {"bytes_per_request": each, "requests": tokens // length, "tokens": tokens}


class _Planned(Protocol):
    # What the whole asks of a rank.
    @property
    def capacity(self) -> Capacity | None: ...
    @property
    def admission(self) -> dict[str, int] | None: ...


def whole_capacity(config: BuildConfig, ranks: Iterable[_Planned]) -> dict[str, Any] | None:
    """The whole deployment: pipeline and tensor ranks hold the same requests, so the least counts; dp multiplies.

    physical: tokens that are in the cache; admission: requests let in when each reserves max_model_len.
    """
    physical: list[Capacity] = []
    admitted: list[dict[str, int]] = []
    for rank in ranks:
        if rank.capacity is None or rank.admission is None:
            return None
        physical.append(rank.capacity)
        admitted.append(rank.admission)
    dp = config.parallel.dp
    return {
        "replicas": dp,
        "longest_request": min(one.longest_request for one in physical),
        "physical": {
            "tokens": dp * min(one.tokens for one in physical),
            "requests": dp * min(one.requests for one in physical),
        },
        "admission": {name: dp * min(one[name] for one in admitted) for name in ("requests", "tokens")},
    }
