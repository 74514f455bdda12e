"""One configuration of a search, measured: what it holds, what is missing, and the overrides that make it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from builder.planning.capacity import Capacity, capacity, free_bytes, least_fraction, most_admitted
from builder.planning.engine_reserve import request_bytes
from builder.planning.engine_terms import MESSAGES, engine_terms, named_engine, without_state
from builder.planning.search_options import hardware_option, spec_overrides
from builder.planning.search_sizes import Shape, Sizes, StageSize
from builder.schema.config import BuildConfig


@dataclass(frozen=True, slots=True)
class Found:
    """A measured configuration.

    needed: bytes of each stage's largest rank before any request; free: what is left of it; asked: what the budget
    must be for the requests asked for; short: bytes that the worst rank lacks for them (0 or less: they fit); held: of
    the rank that has least, and of one replica; None if it is short.
    """

    config: BuildConfig
    shape: Shape
    needed: tuple[int, ...]
    free: tuple[int, ...]
    limiting_stage: int
    asked: int
    short: int
    held: Capacity | None

    @property
    def fits(self) -> bool:
        """What is asked for fits."""
        return self.short <= 0

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return self.config.parallel.world_size

    @property
    def tokens(self) -> int:
        """Tokens held by all replicas, in max_num_seqs equal requests each."""
        return self.held.tokens * self.config.parallel.dp if self.held else 0

    @property
    def requests(self) -> int:
        """Requests of max_model_len held by all replicas."""
        return self.held.requests * self.config.parallel.dp if self.held else 0

    @property
    def at_once(self) -> int:
        """Those of the requests that run together: a replica has max_num_seqs seats."""
        return min(self.requests, self.config.parallel.dp * self.config.runtime.max_num_seqs)

    @property
    def longest_request(self) -> int:
        """The longest single request."""
        return self.held.longest_request if self.held else 0

    @property
    def free_bytes(self) -> int:
        """Of the limiting rank, before any request."""
        return self.free[self.limiting_stage]

    def row(self) -> dict[str, Any]:
        """As the report has it."""
        config = self.config
        parallel, runtime = config.parallel, config.runtime
        axes = {axis: getattr(parallel, axis) for axis in ("pp", "tp", "ep", "dp", "shared_expert")}
        return {
            "device": config.hardware.device,
            "vendor": config.hardware.vendor,
            "devices": self.devices,
            **axes,
            "partition": list(self.shape.partition),
            "spec": {"method": config.spec.method, "num_speculative_tokens": config.spec.drafts},
            "cache": config.cache.layout,
            "max_num_batched_tokens": runtime.max_num_batched_tokens,
            "max_num_seqs": runtime.max_num_seqs,
            "max_model_len": runtime.max_model_len,
            "memory_fraction": runtime.memory_fraction,
            "fits": self.fits,
            "limiting_rank": self.limiting_stage * parallel.dp * parallel.tp,
            "bytes": max(self.needed),
            "free_bytes": self.free_bytes,
            "headroom_bytes": -self.short,
            "tokens": self.tokens,
            "requests": self.requests,
            "at_once": self.at_once,
            "longest_request": self.longest_request,
            "overrides": overrides(config),
        }


def measure(config: BuildConfig, sizes: Sizes, requests: int | None) -> Found:
    """requests: how many of max_model_len all replicas together must hold; None: one each."""
    shape, (between, at_end) = _with_engine(config, sizes), sizes.step(config)
    stages, last, engine = shape.stages, len(shape.stages) - 1, named_engine(config)
    beside = [stage.beside + (at_end if at == last else between) for at, stage in enumerate(stages)]
    static = [stage.nbytes - stage.beside for stage in stages]
    free = tuple(free_bytes(config, held, more) or 0 for held, more in zip(static, beside, strict=True))
    length, each = config.runtime.max_model_len, requests_each(config, requests)
    # Many requests are held physically; that an engine lets one in is asked besides.
    one = [request_bytes(stage.cost, stage.reserve, length) for stage in stages]
    many = [max(most, stage.cost.nbytes(length) * each) for stage, most in zip(stages, one, strict=True)]
    needed = tuple(held + more for held, more in zip(static, beside, strict=True))
    limiting = min(range(len(free)), key=lambda at: free[at] - one[at])
    asked = max(held + wanted for held, wanted in zip(static if engine == "sglang" else needed, many, strict=True))
    short = max(wanted - left for wanted, left in zip(many, free, strict=True))
    held = None if short > 0 else _held(config, stages, free)
    return Found(config, shape, needed, free, limiting, asked, short, held)


def _with_engine(config: BuildConfig, sizes: Sizes) -> Shape:
    # The named engine's own terms; dp and ep ranks of a stage hold the same.
    shape = sizes.shape(config)
    if named_engine(config) == "builder":
        return shape
    reserves, stages = sizes.reserves(config, shape.partition), list[StageSize]()
    for at, (stage, reserve) in enumerate(zip(shape.stages, reserves, strict=True)):
        terms = engine_terms(config, stage.facts, at)
        nbytes = stage.nbytes + sum(term.nbytes for term in terms)
        beside = stage.beside + sum(term.nbytes for term in terms if term.line == MESSAGES)
        cost = without_state(config, stage.facts, stage.cost)
        stages.append(StageSize(nbytes, cost, stage.facts, beside, reserve))
    return Shape(shape.partition, tuple(stages))


def requests_each(config: BuildConfig, requests: int | None) -> int:
    """Requests that one replica must hold: dp divides them."""
    return -(-requests // config.parallel.dp) if requests else 1


def _held(config: BuildConfig, stages: Sequence[StageSize], free: Sequence[int]) -> Capacity:
    # The least of every rank. A stage with no less free and no dearer cache than another cannot be the least.
    scarcest: dict[Any, int] = {}
    for stage, room in zip(stages, free, strict=True):
        scarcest[stage.reserve] = min(room, scarcest.get(stage.reserve, room))
    most = min(most_admitted(config, reserve, room) for reserve, room in scarcest.items())
    found = [capacity(config, stage.cost, room, most) for stage, room in _least(stages, free)]
    return Capacity(
        min(one.longest_request for one in found),
        min(one.tokens for one in found),
        min(one.requests for one in found),
    )


def _least(stages: Sequence[StageSize], free: Sequence[int]) -> Iterator[tuple[StageSize, int]]:
    worst: dict[Any, tuple[StageSize, int]] = {}
    for stage, room in zip(stages, free, strict=True):
        key = stage.cost
        if key not in worst or room < worst[key][1]:
            worst[key] = stage, room
    kept = list(worst.values())
    for stage, room in kept:
        if not any(other is not stage and _dearer(other, left, stage, room) for other, left in kept):
            yield stage, room


def _dearer(other: StageSize, left: int, stage: StageSize, room: int) -> bool:
    slopes = dict(other.cost.slopes)
    return (
        left <= room
        and other.cost.fixed >= stage.cost.fixed
        and all(slopes.get(ratio, 0) >= size for ratio, size in stage.cost.slopes)
    )


def with_least_fraction(config: BuildConfig, sizes: Sizes, requests: int | None) -> BuildConfig:
    """The configuration with the smallest memory_fraction whose budget holds the requests; all where none does."""
    asked = measure(config, sizes, requests).asked
    least = least_fraction(config, asked)
    return replace(config, runtime=replace(config.runtime, memory_fraction=1.0 if least is None else least))


def overrides(config: BuildConfig) -> list[str]:
    """What to put on a command line, beside what the search had there, to plan this configuration."""
    parallel, spec, runtime = config.parallel, config.spec, config.runtime
    words = [f"hardware={hardware_option(config.hardware)}", f"hardware.device={config.hardware.device}"]
    words += [f"{axis}={getattr(parallel, axis)}" for axis in ("pp", "tp", "ep", "dp")]
    words += [f"parallel.shared_expert={parallel.shared_expert}", *spec_overrides(spec)]
    words.append(f"cache={config.cache.layout}")
    words += [f"plan.engine={named_engine(config)}"] if named_engine(config) != "builder" else []
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "memory_fraction")
    return words + [f"runtime.{name}={getattr(runtime, name)}" for name in names]
