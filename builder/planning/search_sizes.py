"""The sizes of many configurations of one model, fast: what a stage costs depends on few things, and those repeat.

The figures are those of ``document.plan``. It measures every rank of one configuration; here the first tp rank of each
stage is measured, which holds the most rows of the vocabulary and is otherwise like its neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, cast

from builder.assembly.measure import CacheCost, cache_cost, footprint
from builder.assembly.partition import Load, auto_partition, even_partition
from builder.assembly.sharding import Shards, shards_of
from builder.assembly.stages import assemble
from builder.components.base.spec import CacheFormat, ComponentSpec
from builder.components.stage.spec import StageSpec
from builder.planning.activations import activation_bytes
from builder.planning.capacity import BESIDE_THE_POOLS, given_bytes
from builder.planning.engine_reserve import reserve_of
from builder.planning.engine_terms import Facts, facts_of
from builder.planning.engine_terms_pages import Pages
from builder.planning.engine_terms_pools import Pools
from builder.schema.config import BuildConfig
from builder.schema.parallel import ParallelConfig


@dataclass(frozen=True, slots=True)
class StageSize:
    """What the largest rank of a stage holds before its activations, its cache, and what engines' terms ask of it.

    beside: those of its bytes that SGLang's fraction does not hold; reserve: pages or pools of a named engine.
    """

    nbytes: int
    cost: CacheCost
    facts: Facts
    beside: int = 0
    reserve: Pages | Pools | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The stages of a configuration: layers of each, and their sizes."""

    partition: tuple[int, ...]
    stages: tuple[StageSize, ...]


class Sizes:
    """Measures configurations that differ from ``config`` in what a search varies."""

    def __init__(self, config: BuildConfig) -> None:
        self._families: dict[Any, _Family] = {}
        self._shapes: dict[Any, Shape] = {}
        self._partitions: dict[Any, tuple[int, ...]] = {}
        self._steps: dict[Any, tuple[int, int]] = {}
        self._reserves: dict[Any, tuple[Pages | Pools | None, ...]] = {}
        self.config = config

    def shape(self, config: BuildConfig) -> Shape:
        """The stages of a legal configuration. Its device, dp and max_num_seqs do not matter to them.

        What an engine reserves is not in them: see ``reserves``.
        """
        parallel, runtime = config.parallel, config.runtime
        kind = _kind(config)
        cut = (parallel.tp, parallel.ep, parallel.shared_expert)
        key = (kind, cut, parallel.pp, config.cache.layout, runtime.max_model_len)
        if key not in self._shapes:
            if kind not in self._families:
                self._families[kind] = _Family(config)
            self._shapes[key] = self._measure(self._families[kind], config)
        return self._shapes[key]

    def step(self, config: BuildConfig) -> tuple[int, int]:
        """What a step works in, and what the user gives, on a stage before the last and on the last one."""
        parallel, runtime = config.parallel, config.runtime
        axes = (parallel.pp, parallel.tp, parallel.ep, parallel.dp, parallel.shared_expert)
        memory = config.hardware.total_bytes
        key = (_kind(config), axes, config.cache.layout, runtime.max_model_len, runtime.max_num_seqs, memory)
        if key not in self._steps:
            given = sum(given_bytes(config).values())
            before, last = (activation_bytes(config, last_stage=last) for last in (False, True))
            self._steps[key] = before + given, last + given
        return self._steps[key]

    def reserves(self, config: BuildConfig, partition: tuple[int, ...]) -> tuple[Pages | Pools | None, ...]:
        """The named engine's pages or pools of every stage; whatever the tensors' cut, there is one KV head."""
        runtime, hardware = config.runtime, config.hardware
        key = (_kind(config), config.cache.layout, partition, runtime.max_num_seqs, hardware.vendor)
        if key not in self._reserves:
            family = self._families[_kind(config)]
            form = replace(family.form, layout=config.cache.layout)
            self._reserves[key] = tuple(reserve_of(config, stage, form) for stage in family.stages(partition))
        return self._reserves[key]

    def _measure(self, family: _Family, config: BuildConfig) -> Shape:
        measured = family.measured(config.parallel, config.cache.layout)
        partition = self._partition(measured, config)
        return Shape(partition, tuple(measured.stages(partition)))

    def _partition(self, measured: _Measured, config: BuildConfig) -> tuple[int, ...]:
        pp, rule = config.parallel.pp, config.parallel.partition
        layers = len(measured.layers)
        if isinstance(rule, list):
            return tuple(cast("list[int]", rule))
        if rule == "even" or pp == 1:
            return tuple(even_partition(layers, pp))
        loads = measured.loads(config.runtime.max_model_len)
        key = (*loads, pp)
        if key not in self._partitions:
            self._partitions[key] = tuple(auto_partition(*loads, pp))
        return self._partitions[key]


def _kind(config: BuildConfig) -> tuple[object, ...]:
    # All that decides which parts there are, and their unsplit tensors.
    spec, runtime = config.spec, config.runtime
    return spec.method, spec.wants_stash, spec.own_checkpoint, spec.drafts, runtime.max_num_batched_tokens


class _Family:
    """The parts of one model with one drafter: its layers, and what stands before and after them."""

    def __init__(self, config: BuildConfig) -> None:
        layers = config.model.num_hidden_layers
        whole = assemble(_unsplit(config, [layers]))
        self._whole = whole.stages[0]
        members = self._whole.members
        self.form = whole.cache_format
        self.layers = [spec for name, spec in members if _is_layer(name)]
        self.before = [spec for name, spec in members if name == "embed"]
        self.after_all = [spec for name, spec in members if name != "embed" and not _is_layer(name)]
        self.after = self.after_all
        if layers > 1:
            last = assemble(_unsplit(config, [layers - 1, 1])).stages[1]
            self.after = [spec for name, spec in last.members if not _is_layer(name)]
        self._measured: dict[Any, _Measured] = {}

    def stages(self, partition: Sequence[int]) -> Iterator[StageSpec]:
        """The stages as the planner has them, as far as their parts go."""
        edges, last = [0, *accumulate(partition)], len(partition) - 1
        for at, (start, end) in enumerate(pairwise(edges)):
            parts = [] if at else list(self.before)
            parts += self.layers[start:end]
            parts += (self.after if at else self.after_all) if at == last else []
            yield replace(
                self._whole, first=start, last=end - 1, members=tuple((str(n), p) for n, p in enumerate(parts))
            )

    def measured(self, parallel: ParallelConfig, layout: str) -> _Measured:
        """The parts as one cut and one layout make them."""
        key = (parallel.tp, parallel.ep, parallel.shared_expert, layout)
        if key not in self._measured:
            self._measured[key] = _Measured(self, parallel, replace(self.form, layout=layout))
        return self._measured[key]


def _unsplit(config: BuildConfig, partition: list[int]) -> BuildConfig:
    alone = replace(config.parallel, pp=len(partition), tp=1, ep=1, dp=1, partition=partition)
    return replace(config, parallel=alone)


def _is_layer(name: str) -> bool:
    return name.startswith("layers.")


@dataclass(frozen=True, slots=True)
class _Size:
    """Of some parts together: bytes on the first tp rank and on the last one, the cache, and the engines' facts.

    beside: of the bytes on the first, those beside SGLang's pools.
    """

    most: int
    fewest: int
    cost: CacheCost
    facts: Facts
    beside: int


class _Measured:
    def __init__(self, family: _Family, parallel: ParallelConfig, form: CacheFormat) -> None:
        self._cuts = [shards_of(parallel, 0, tp) for tp in (0, parallel.tp - 1)]
        self._form = form
        seen: dict[int, _Size] = {}
        for spec in family.layers:
            if id(spec) not in seen:
                seen[id(spec)] = self._size([spec])
        self.layers = [seen[id(spec)] for spec in family.layers]
        self._before, self._after = self._size(family.before), self._size(family.after)
        self._after_all = self._size(family.after_all)
        self._bytes = [0, *accumulate(layer.most for layer in self.layers)]
        self._costs = list(_running_costs(self.layers))

    def _size(self, specs: Sequence[ComponentSpec]) -> _Size:
        most, fewest = (_bytes(specs, cut) for cut in self._cuts)
        cost = sum((cache_cost(spec, self._form) for spec in specs), CacheCost(0, ()))
        facts = sum((facts_of(spec, self._cuts[0], self._form) for spec in specs), Facts())
        return _Size(most, fewest, cost, facts, _beside(specs, self._cuts[0]))

    def loads(self, length: int) -> tuple[tuple[int, ...], Load, Load]:
        """What the search for the partition asks for: each layer, and what stands before and after them."""
        layers = tuple(layer.most + layer.cost.nbytes(length) for layer in self.layers)
        ends = (
            Load(size.most + cache, size.fewest + cache)
            for size, cache in ((one, one.cost.nbytes(length)) for one in (self._before, self._after))
        )
        first, last = ends
        return layers, first, last

    def stages(self, partition: Sequence[int]) -> Iterator[StageSize]:
        """The sizes of every stage."""
        edges = [0, *accumulate(partition)]
        for at, (start, end) in enumerate(pairwise(edges)):
            nbytes, cost = self._bytes[end] - self._bytes[start], _between(self._costs[start], self._costs[end])
            beside = sum(layer.beside for layer in self.layers[start:end])
            facts = sum((layer.facts for layer in self.layers[start:end]), Facts())
            ends = [self._before] if at == 0 else []
            if at == len(partition) - 1:
                ends.append(self._after if at else self._after_all)
            for size in ends:
                nbytes, cost, facts = nbytes + size.most, cost + size.cost, facts + size.facts
                beside += size.beside
            yield StageSize(nbytes, cost, facts, beside)


def _bytes(specs: Sequence[ComponentSpec], cut: Shards) -> int:
    return sum(footprint(spec, cut).nbytes for spec in specs)


def _beside(specs: Sequence[ComponentSpec], cut: Shards) -> int:
    return sum(size for spec in specs for line, size in footprint(spec, cut).booked if line.value in BESIDE_THE_POOLS)


def _running_costs(layers: Sequence[_Size]) -> Iterator[tuple[int, Counter[int]]]:
    fixed, slopes = 0, Counter[int]()
    yield fixed, slopes
    for layer in layers:
        fixed, slopes = fixed + layer.cost.fixed, slopes + Counter(dict(layer.cost.slopes))
        yield fixed, slopes


def _between(start: tuple[int, Counter[int]], end: tuple[int, Counter[int]]) -> CacheCost:
    slopes = ((ratio, size - start[1][ratio]) for ratio, size in sorted(end[1].items()))
    return CacheCost(end[0] - start[0], tuple((ratio, size) for ratio, size in slopes if size))
