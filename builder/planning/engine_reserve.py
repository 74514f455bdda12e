"""What a request reserves where the named engine counts its cache in pages or pools, not byte by byte."""

from __future__ import annotations

from typing import Protocol

from builder.assembly.measure import CacheCost
from builder.components.base.spec import CacheFormat
from builder.components.stage.spec import StageSpec
from builder.planning.engine_terms import named_engine
from builder.planning.engine_terms_pages import Pages, in_flight, pages_of
from builder.planning.engine_terms_pools import Pools, pools_of
from builder.schema.config import BuildConfig


class Reserve(Protocol):
    """What pages and pools have in common."""

    def bytes_needed(self, length: int) -> int:
        """Bytes without which one request of ``length`` tokens is not admitted."""
        ...

    def longest(self, free: int, most: int) -> int:
        """The longest request that ``free`` bytes admit; 0 if none."""
        ...


def reserve_of(config: BuildConfig, stage: StageSpec, form: CacheFormat) -> Pages | Pools | None:
    """The pages or pools of a stage; None where a request takes its cache and nothing more."""
    if config.cache.layout == "plain":
        return None
    match named_engine(config):
        case "vllm":
            return pages_of(stage, form, in_flight(config))
        case "sglang" if config.hardware.vendor == "nvidia":
            # On AMD its recipes keep windows and open rows in rings.
            return pools_of(stage, form, config.runtime.max_num_seqs)
        case _:
            return None


def request_bytes(cost: CacheCost, reserve: Reserve | None, length: int) -> int:
    """What one request of ``length`` tokens needs to be let in and held: its cache, or what is reserved if more."""
    held = cost.nbytes(length)
    return held if reserve is None else max(held, reserve.bytes_needed(length))
