"""A task's computation, wherever its ranks are: in this process, in those of a launcher, or in new ones."""

from __future__ import annotations

from typing import Any

from builder.errors import ConfigError, Problem
from builder.runtime.jobs import JOBS
from builder.runtime.model import open_model
from builder.runtime.ranks.launched import check_count, launched
from builder.schema.config import BuildConfig


def compute(config: BuildConfig) -> Any:
    """What the task's job finds. Raises ConfigError, CheckpointError, and RankError where a rank ends early."""
    place, ranks = launched(), config.parallel.world_size
    check_count(place, ranks)
    _check_offload(config)
    if ranks == 1:
        return JOBS[config.task](open_model(config))
    if place is not None:
        from builder.runtime.ranks.worker import lead

        return lead(config, place)
    from builder.runtime.ranks.start import run_ranks

    return run_ranks(config)


def _check_offload(config: BuildConfig) -> None:
    # Such a rank computes a layer for others while it stands at another one, and would have to fetch it out of turn.
    ep, tp, mode = config.parallel.ep, config.parallel.tp, config.hardware.offload
    if mode != "none" and ep > tp:
        reason = f"ep={ep} is more than tp={tp}: replicas compute experts for each other, whose weights must be there"
        raise ConfigError([Problem("hardware.offload", mode, reason, f"use hardware.offload=none, or ep={tp}")])
