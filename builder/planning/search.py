"""``task=search``: every deployment within limits, measured; the best of them, and what stops the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from builder.assembly import sharding
from builder.assembly.stages import assemble
from builder.errors import Problem
from builder.outcome import Outcome
from builder.planning.engine_terms import named_engine
from builder.planning.pictures import check
from builder.planning.rules import refusals
from builder.planning.search_found import Found, measure, requests_each, with_least_fraction
from builder.planning.search_sizes import Sizes
from builder.planning.search_space import Space, space_of
from builder.schema.config import BuildConfig, problems
from builder.schema.groups import CacheConfig, SearchConfig
from builder.schema.parallel import ParallelConfig, parallel_problems
from builder.schema.spec import SpecConfig


@dataclass
class Search:
    """A search under way. looked_at: all plans; refused: illegal ones, by reason; found: those that fit."""

    space: Space
    settings: SearchConfig
    looked_at: int = 0
    legal: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    found: list[Found] = field(default_factory=list[Found])
    nearest: Found | None = None
    seconds: float = 0.0

    def run(self) -> None:
        """Look at every plan."""
        start = time.perf_counter()
        look = _Context(self).look if self.settings.ask == "context" else self._look
        self._sizes = Sizes(self.space.config)
        for config in self._legal():
            look(config)
        self.seconds = time.perf_counter() - start

    def measured(self, config: BuildConfig) -> Found:
        """One configuration, whatever it holds."""
        return measure(config, self._sizes, self.settings.requests)

    def keep(self, found: Found) -> None:
        """Note what fits, and otherwise what came nearest to it."""
        if found.fits:
            self.found.append(found)
        elif self.nearest is None or (found.short, found.devices) < (self.nearest.short, self.nearest.devices):
            self.nearest = found

    def _look(self, config: BuildConfig) -> None:
        if self.settings.ask == "memory_fraction":
            config = with_least_fraction(config, self._sizes, self.settings.requests)
        self.keep(self.measured(config))

    def _legal(self) -> Iterator[BuildConfig]:
        """Every legal configuration, those that share sizes one after the other."""
        space, rules = self.space, _Rules(self.space.config)
        for spec in space.specs:
            for layout in space.caches:
                with_spec = rules.with_spec(spec, layout)
                reasons = rules.of_spec(with_spec)
                for parallel in space.parallels:
                    faults = reasons or rules.of_parallel(with_spec, parallel)
                    yield from self._each(replace(with_spec, parallel=parallel), faults)

    def _each(self, config: BuildConfig, faults: list[str]) -> Iterator[BuildConfig]:
        space = self.space
        count = len(space.runtimes) * len(space.devices)
        self.looked_at += count
        if faults:
            self.refused[faults[0]] += count
            return
        for runtime in space.runtimes:
            each, seqs = requests_each(config, self.settings.requests), runtime.max_num_seqs
            if each > seqs:
                self.refused[f"runtime.max_num_seqs={seqs}: fewer than the requests that a replica must hold"] += len(
                    space.devices
                )
                continue
            for hardware in space.devices:
                candidate = replace(config, runtime=runtime, hardware=hardware)
                if refused := self._engine_refuses(candidate):
                    self.refused[refused] += 1
                    continue
                self.legal += 1
                yield candidate

    def _engine_refuses(self, config: BuildConfig) -> str:
        """Why the named engine would not start it; nothing for our own runtime."""
        engine = named_engine(config)
        if engine == "builder":
            return ""
        found = refusals(config, self._sizes.shape(config).partition, engine)
        if not found:
            return ""
        # Of a partition the text says it in a few words, whatever the other stages hold.
        first = found[0]
        return f"{first.key}: {first.reason}" if first.key == "parallel.partition" else _reason(first)


class _Rules:
    """What makes a configuration illegal: the checks of the schema and of the tensors, each asked once."""

    def __init__(self, config: BuildConfig) -> None:
        self.config = config
        self._axes: dict[tuple[object, ...], list[str]] = {}
        self._divisions: dict[tuple[object, ...], Any] = {}

    def with_spec(self, spec: SpecConfig, layout: str) -> BuildConfig:
        """The configuration with one way of drafting and one cache layout."""
        draft = self.config.draft if spec.method == "draft_model" else None
        return replace(self.config, spec=spec, draft=draft, cache=CacheConfig(layout=layout))

    def of_spec(self, config: BuildConfig) -> list[str]:
        """Whatever the release, the method and the layout say to each other."""
        alone = replace(config.parallel, pp=1, tp=1, ep=1, dp=1, partition="auto")
        return [_reason(problem) for problem in problems(replace(config, parallel=alone))]

    def of_parallel(self, config: BuildConfig, parallel: ParallelConfig) -> list[str]:
        """The axes against each other and against the model, then the tensors' divisions."""
        axes = (parallel.pp, parallel.tp, parallel.ep, parallel.dp)
        if axes not in self._axes:
            self._axes[axes] = [_reason(problem) for problem in parallel_problems(parallel, config.model)]
        spec = (config.spec.method, config.spec.own_checkpoint)
        key = (spec, parallel.tp, parallel.ep, parallel.dp, parallel.shared_expert)
        if key not in self._axes:
            rules = self._rules(config, spec)
            there = replace(config, parallel=parallel)
            self._axes[key] = [_reason(problem) for problem in sharding.problems(there, rules)]
        return self._axes[axes] or self._axes[key]

    def _rules(self, config: BuildConfig, spec: tuple[object, ...]) -> Any:
        if spec not in self._divisions:
            alone = replace(config.parallel, pp=1, tp=1, ep=1, dp=1, partition="auto")
            self._divisions[spec] = list(sharding.rules_of(assemble(replace(config, parallel=alone)).stages[0]))
        return self._divisions[spec]


def _reason(problem: Problem) -> str:
    return f"{problem.key}={problem.value}: {problem.reason}"


class _Context:
    """The longest max_model_len of every device and count. A plan that cannot beat the best so far costs one look."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.best: dict[tuple[str, int], int] = {}

    def look(self, config: BuildConfig) -> None:
        """Keep the plan if it holds more than others of its device and count."""
        key = config.hardware.device, config.parallel.world_size
        most, before = config.model.max_position_embeddings, self.best.get(key, 0)
        found = self._at(config, min(before + 1, most))
        if not found.fits:
            self.search.keep(found) if not before else None
            return
        low, high = min(before + 1, most), most
        while low < high:
            middle = (low + high + 1) // 2
            tried = self._at(config, middle)
            low, high, found = (middle, high, tried) if tried.fits else (low, middle - 1, found)
        self.best[key] = low
        self.search.keep(found)

    def _at(self, config: BuildConfig, length: int) -> Found:
        return self.search.measured(replace(config, runtime=replace(config.runtime, max_model_len=length)))


ORDERS: dict[str, Callable[[Found], tuple[float, ...]]] = {
    "tokens": lambda one: (-one.tokens, one.devices, one.short),
    "requests": lambda one: (-one.at_once, one.devices, one.short),
    "devices": lambda one: (one.devices, -one.tokens, one.short),
    "headroom": lambda one: (one.short, one.devices, -one.tokens),
    "memory_fraction": lambda one: (one.config.runtime.memory_fraction, one.devices, one.short),
    "context": lambda one: (-one.config.runtime.max_model_len, one.devices, one.short),
}


def order_of(settings: SearchConfig) -> Callable[[Found], tuple[float, ...]]:
    """How the answers to the question are ranked, best first."""
    return ORDERS[settings.objective if settings.ask == "deployments" else settings.ask]


def run_search(config: BuildConfig) -> Outcome:
    """Search. Exit 0 when something fits, 1 when nothing does."""
    from builder.planning.search_result import document_of, report

    assert config.search is not None, "task=search brings its keys"
    check(config, sweep=True)
    search = Search(space_of(config), config.search)
    search.run()
    document = document_of(search)
    report(search, document)
    return Outcome(document, 0 if search.found else 1, lambda: _table(document), "search.json")


def _table(document: dict[str, Any]) -> Any:
    from builder.planning.search_table import render

    return render(document)
