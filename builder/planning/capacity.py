"""How much a rank holds beside what it is made of: tokens, requests, the longest context."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from builder.assembly.measure import CacheCost
from builder.planning.engine_reserve import Reserve
from builder.planning.engine_terms import MESSAGES, named_engine
from builder.planning.engine_terms_pages import Pages
from builder.planning.engine_terms_pools import Pools
from builder.schema.config import BuildConfig

GIVEN = ("graphs", "communication", "other")
"""Lines of a rank's bytes that nobody can derive: the user gives them."""

MOST_FRACTION = 10_000
"""memory_fraction is looked for in steps of 1 / this."""

ACTIVATIONS = "activations"
BESIDE_THE_POOLS = (ACTIVATIONS, "mtp_stash", "aux_hidden", MESSAGES, *GIVEN)
"""Lines that SGLang's fraction does not hold: what a step works in, and what is given."""


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


def free_bytes(config: BuildConfig, static: int, beside: int) -> int | None:
    """What is left for requests; negative by what is missing, None where no memory is judged.

    static: weights and what else stays; beside: the lines of ``BESIDE_THE_POOLS``. The budget holds both, but SGLang's
    holds weights and cache only: the others take what the fraction leaves of the device, and must find room there.
    """
    budget, memory = budget_bytes(config), config.hardware.total_bytes
    if budget is None or memory is None:
        return None
    if named_engine(config) != "sglang":
        return budget - static - beside
    pools, outside = budget - static, outside_bytes(config, memory) - beside
    return pools if outside >= 0 else min(pools, outside)


def least_fraction(config: BuildConfig, budget: int) -> float | None:
    """The smallest memory_fraction, in steps of 0.0001, with that budget; None where not even all of it has it."""
    memory, needed = config.hardware.total_bytes or 0, budget + config.runtime.reserve_bytes
    steps = math.ceil(needed * MOST_FRACTION / memory) if memory else MOST_FRACTION + 1
    while steps <= MOST_FRACTION and math.floor(steps / MOST_FRACTION * memory) < needed:
        steps += 1
    return steps / MOST_FRACTION if steps <= MOST_FRACTION else None


def outside_bytes(config: BuildConfig, memory: int) -> int:
    """What the fraction leaves of the device."""
    return memory - math.floor(config.runtime.memory_fraction * memory)


def most_admitted(config: BuildConfig, reserve: Reserve | None, free: int) -> int:
    """The longest request that the model takes and, where it counts in pages or pools, the engine lets in."""
    most = config.model.max_position_embeddings
    return most if reserve is None else reserve.longest(free, most)


def capacity(config: BuildConfig, cost: CacheCost, free: int, most: int) -> Capacity:
    """What ``free`` bytes hold of requests of at most ``most`` tokens."""
    runtime = config.runtime
    full = cost.nbytes(runtime.max_model_len)
    longest = longest_within(cost, free, most)
    each = longest_within(cost, free // runtime.max_num_seqs, most)
    return Capacity(longest, runtime.max_num_seqs * each, _requests(free, full, admitted=runtime.max_model_len <= most))


def _requests(free: int, full: int, *, admitted: bool) -> int:
    return max(0, free // full) if full and admitted else 0


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
    # A short request keeps a whole window ring, which its pages may not have yet: what is not held is not let in.
    requests = min(_requests(free, each, admitted=True), _requests(free, cost.nbytes(length), admitted=True))
    tokens = pages.reported_tokens(free, length) if pages and requests else requests * length
    return {"bytes_per_request": each, "requests": requests, "tokens": tokens}


def admission_in_pools(length: int, cost: CacheCost, pools: Pools, free: int) -> dict[str, int]:
    """As SGLang counts: a request takes its tokens of the full pool."""
    tokens, each = pools.tokens(free), math.ceil(pools.per_token * length)
    requests = min(tokens // length, _requests(free, cost.nbytes(length), admitted=True))
    return {"bytes_per_request": each, "requests": requests, "tokens": tokens}


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
