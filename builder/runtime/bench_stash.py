"""What the MTP stash costs a step: none, filled by a copy, or written in place (the table of vLLM PR #50312)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from builder.components.base.module import TORCH_DTYPES
from builder.components.linear.spec import dtype_name
from builder.kernels.devices import TORCH_DEVICES
from builder.kernels.operations import select
from builder.schema.config import BuildConfig

TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
SECONDS_PER_CASE = 1.0
LEAST_ROUNDS, MOST_ROUNDS = 5, 200


WAYS = ("none", "copy", "in_place")


@dataclass(frozen=True)
class Case:
    """The mix that ends the last layer over some tokens. seconds, moved: of each of ``WAYS``.

    stash: bytes of the rows; moved: bytes that the way reads and writes at least.
    """

    tokens: int
    stash: int
    seconds: tuple[float, ...]
    moved: tuple[int, ...]

    def to_dict(self, bandwidth: float) -> dict[str, Any]:
        """As the report has it. bandwidth: of this machine's own copy, bytes read and written per second."""
        ways = {
            way: {"seconds": seconds, "bytes": moved, "share_of_copy_bandwidth": moved / seconds / bandwidth}
            for way, seconds, moved in zip(WAYS, self.seconds, self.moved, strict=True)
        }
        return {"tokens": self.tokens, "stash_bytes": self.stash, **ways}


def measure(config: BuildConfig, tokens: tuple[int, ...] = TOKENS) -> dict[str, Any]:
    """Time the three ways, in turns, for each number of tokens up to runtime.max_num_batched_tokens: medians."""
    model, device = config.model, torch.device(TORCH_DEVICES[config.hardware.vendor])
    dtype = TORCH_DTYPES[dtype_name(config.runtime.dtype)]
    most = config.runtime.max_num_batched_tokens
    stash = torch.empty((most, model.hc_mult, model.hidden_size), dtype=dtype, device=device)
    cases = [_case(config, stash, count) for count in tokens if count <= most]
    bandwidth = _copy_bandwidth(stash)
    return {
        "model": model.name,
        "device": config.hardware.vendor,
        "dtype": config.runtime.dtype,
        "copy_bandwidth": bandwidth,
        "cases": [case.to_dict(bandwidth) for case in cases],
    }


def _case(config: BuildConfig, stash: Tensor, tokens: int) -> Case:
    mix = select(config.kernels).hyper_connections.after
    streams, hidden, dtype, device = stash.shape[1], stash.shape[2], stash.dtype, stash.device
    y, stream = torch.randn(tokens, hidden, device=device).to(dtype), stash.new_zeros((tokens, streams, hidden))
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    post = torch.rand(tokens, streams, device=device, dtype=exact)
    comb = torch.rand(tokens, streams, streams, device=device, dtype=exact)
    rows = stash[:tokens]
    ways: tuple[Callable[[], Any], ...] = (
        lambda: mix(y, stream, post, comb),
        lambda: rows.copy_(mix(y, stream, post, comb)),
        lambda: mix(y, stream, post, comb, rows),
    )
    mixed = sum(part.nbytes for part in (y, stream, post, comb, rows))
    return Case(tokens, rows.nbytes, tuple(_medians(ways, device)), (mixed, mixed + 2 * rows.nbytes, mixed))


def _medians(ways: tuple[Callable[[], Any], ...], device: torch.device) -> list[float]:
    times: list[list[float]] = [[] for _ in ways]
    for way in ways:
        _timed(way, device)
    begun = time.perf_counter()
    while len(times[0]) < LEAST_ROUNDS or (
        time.perf_counter() - begun < SECONDS_PER_CASE and len(times[0]) < MOST_ROUNDS
    ):
        for found, way in zip(times, ways, strict=True):
            found.append(_timed(way, device))
    return [median(found) for found in times]


def _timed(way: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    begun = time.perf_counter()
    with torch.inference_mode():
        way()
    _wait(device)
    return time.perf_counter() - begun


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _copy_bandwidth(stash: Tensor) -> float:
    source = torch.empty_like(stash)
    (seconds,) = _medians((lambda: stash.copy_(source),), stash.device)
    return 2 * stash.nbytes / seconds
