"""``task=reconcile``: what an engine logged while it started, beside the plan, term by term."""

from __future__ import annotations

import math
from typing import Any

from builder.engines.command import ENGINES
from builder.engines.explain import (
    cache_memory,
    concurrency,
    graphs,
    loaded,
    longest,
    request,
    sglang_fraction,
    tokens,
)
from builder.engines.logs import GIB, Log, read_log
from builder.engines.reconcile_pools import pool_terms, pool_tokens
from builder.engines.terms import Term
from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.planning.document import Plan, RankPlan, plan
from builder.schema.config import BuildConfig

TOLERANCE = 0.03
"""Weights follow from declared tensors: a log agrees within 3 percent, or something repacked them."""

_LOADED = ("weights", "buffers", "engine_weights")
_DRAFT = ("drafter",)
_STASH = ("mtp_stash", "aux_hidden")


def run_reconcile(config: BuildConfig) -> Outcome:
    """Compare. Exit 0 where the weights, and every other term that should, agree; 1 where one differs or none can."""
    if not config.log:
        raise ConfigError([Problem("log", None, "task=reconcile reads a log", "give log=FILE, a start-up log")])
    _refuse_report(config)
    log = read_log(config.log)
    document = reconcile(config, log)
    return Outcome(document, 0 if document["agrees"] else 1, lambda: _shown(document), "reconcile.json")


def _refuse_report(config: BuildConfig) -> None:
    report = config.report
    values = {} if report is None else {"report.html": report.html, "report.plot": report.plot}
    reason, works = "a comparison is a table, nothing of it is drawn", "leave it out; task=plan draws"
    found = [Problem(key, value, reason, works) for key, value in values.items() if value is not None]
    if found:
        raise ConfigError(found)


def reconcile(config: BuildConfig, log: Log) -> dict[str, Any]:
    """The comparison as a document."""
    planned = plan(config)
    terms = [*_weights(planned, log), *_memory(planned, log), *_capacity(planned, log), *pool_terms(planned, log)]
    return {
        "schema": 1,
        "engine": log.engine,
        "version": ENGINES[log.engine],
        "agrees": _agrees(terms),
        "tolerance": TOLERANCE,
        "terms": [term.to_dict() for term in terms],
        "notes": _notes(config, log),
        "unmatched_lines": list(log.unmatched),
    }


def _agrees(terms: list[Term]) -> bool | None:
    """Whether the log agrees; None where it has nothing that must."""
    verdicts = [term.agrees for term in terms if term.agrees is not None]
    if not all(verdicts):
        return False
    return True if any(term.term == "weights" for term in terms) else None


def _stages(planned: Plan, log: Log, name: str) -> list[tuple[int | None, RankPlan]]:
    # The largest rank of every stage that the log speaks of; of all where it does not tell them apart.
    found: list[tuple[int | None, RankPlan]] = []
    for stage in log.stages(name):
        ranks = [rank for rank in planned.ranks if stage is None or rank.place.pp == stage]
        if ranks:
            found.append((stage, max(ranks, key=lambda rank: _loaded(rank, draft=True))))
    return found


def _loaded(rank: RankPlan, *, draft: bool) -> int:
    lines = (*_LOADED, *((*_DRAFT, *_STASH) if draft else ()))
    return sum(size for line, size in rank.booked.items() if line in lines)


def _weights(planned: Plan, log: Log) -> list[Term]:
    # vLLM measures target, drafter and MTP buffer in one figure; SGLang loads the drafter on its own.
    both, terms = log.engine == "vllm", list[Term]()
    for stage, rank in _stages(planned, log, "loaded_gib"):
        size, logged = _loaded(rank, draft=both), log.most("loaded_gib", stage=stage)
        if logged is not None:
            terms.append(_weighed("weights", planned.config, size, logged * GIB, stage))
    beyond = max((stage for stage in log.stages("loaded_gib") if stage is not None), default=0) + 1
    if beyond > planned.config.parallel.pp:
        words = f"the log is of {beyond} pipeline stages: add pp={beyond}"
        terms.append(Term("stages", "stages", planned.config.parallel.pp, beyond, words, False))
    draft = log.most("loaded_gib", draft=True)
    if draft is not None:
        last = planned.ranks[-1]
        size = sum(last.booked.get(line, 0) for line in _DRAFT)
        terms.append(_weighed("drafter", planned.config, size, draft * GIB, None))
    seconds = log.most("load_seconds")
    if seconds is not None:
        terms.append(Term("loading time", "seconds", None, seconds, "a plan says nothing of time"))
    return terms


def _weighed(name: str, config: BuildConfig, size: int, logged: float, stage: int | None) -> Term:
    agrees = size > 0 and abs(logged / size - 1) <= TOLERANCE
    return Term(name, "bytes", size, round(logged), loaded(config, size, logged, agrees=agrees), agrees, stage)


def _memory(planned: Plan, log: Log) -> list[Term]:
    terms: list[Term] = []
    for stage, rank in _stages(planned, log, "cache_gib"):
        available = log.least("cache_gib", stage=stage)
        if available is not None:
            words = cache_memory(planned.config, rank, available * GIB)
            terms.append(Term("cache memory", "bytes", rank.free, round(available * GIB), words, None, stage))
    for name, title in (("graphs_estimated_gib", "graph memory, estimated"), ("graphs_gib", "graph memory")):
        size = log.most(name)
        if size is not None:
            terms.append(Term(title, "bytes", _booked(planned, "graphs"), round(size * GIB), graphs(log.engine)))
    peak = log.most("activations_gib")
    if peak is not None:
        words = "the engine's profiling run at max_num_batched_tokens; the plan's figure is an estimate"
        terms.append(Term("activations", "bytes", _booked(planned, "activations"), round(peak * GIB), words))
    return terms + _fraction(planned, log)


def _booked(planned: Plan, line: str) -> int | None:
    return max((rank.booked[line] for rank in planned.ranks if line in rank.booked), default=None)


def _fraction(planned: Plan, log: Log) -> list[Term]:
    # SGLang's least share: 1 - available / before, over target and drafter.
    before, stated = log.most("before_gib"), log.most("least_fraction")
    loads = [log.most("loaded_gib"), log.most("loaded_gib", draft=True)]
    sizes = [size for size in loads if size is not None]
    if stated is None and (before is None or not sizes):
        return []
    logged = stated if stated is not None else sum(sizes) / (before or math.inf)
    total = before * GIB if before is not None else planned.config.hardware.total_bytes
    size = max(_loaded(rank, draft=True) for rank in planned.ranks)
    share = round(size / total, 4) if total else None
    return [Term("least memory fraction", "fraction", share, round(logged, 4), sglang_fraction())]


def _capacity(planned: Plan, log: Log) -> list[Term]:
    config, rank = planned.config, planned.ranks[planned.limiting_rank]
    length = int(log.least("length") or config.runtime.max_model_len)
    # With the engine named, a request is what that engine reserves for it.
    whole = rank.pages.bytes_needed(length) if rank.pages else rank.cache.nbytes(length)
    terms: list[Term] = []
    many, cache, held = log.least("concurrency"), log.least("cache_gib"), log.least("tokens")
    fits = None if rank.free is None else round(max(0.0, rank.free / whole), 2)
    if many is not None:
        words = concurrency(length)
        terms.append(Term(f"requests of {length:,} tokens", "requests", fits, many, words))
    if many and cache is not None:
        words = request(length, whole, cache * GIB / many)
        terms.append(Term(f"one request of {length:,} tokens", "bytes", whole, round(cache * GIB / many), words))
    needed = log.most("needed_gib")
    if needed is not None:
        words = request(length, whole, needed * GIB)
        terms.append(Term(f"one request of {length:,} tokens", "bytes", whole, round(needed * GIB), words))
    if held is not None and log.engine == "vllm":
        ours = None if fits is None or rank.free is None else int(max(0.0, rank.free / whole) * length)
        terms.append(Term("tokens", "tokens", ours, held, tokens("vllm", length)))
    elif held is not None:
        terms.append(Term("tokens", "tokens", pool_tokens(planned, log), held, tokens("sglang", length)))
    most = log.least("longest")
    if most is not None:
        ours = None if rank.capacity is None else rank.capacity.longest_request
        if rank.pages and rank.free is not None:
            ours = rank.pages.longest(rank.free, config.model.max_position_embeddings)
        terms.append(Term("longest request", "tokens", ours, most, longest()))
    blocks = log.least("blocks")
    if blocks is not None:
        words = "blocks of all cache groups together, each group with its own block size: no count of tokens"
        terms.append(Term("cache blocks", "blocks", None, blocks, words))
    return terms


def _notes(config: BuildConfig, log: Log) -> list[str]:
    found: list[str] = []
    length, fraction = log.least("length"), log.least("fraction")
    if length is not None and int(length) != config.runtime.max_model_len:
        found.append(
            f"the log is for {int(length):,} tokens per request, the configuration for "
            f"{config.runtime.max_model_len:,}: add runtime.max_model_len={int(length)}"
        )
    if fraction is not None and abs(fraction - config.runtime.memory_fraction) > 1e-9:
        found.append(
            f"the log is for a memory fraction of {fraction}, the configuration for {config.runtime.memory_fraction}: "
            f"add runtime.memory_fraction={fraction}"
        )
    if config.parallel.pp > 1 and not any(stage is not None for stage in log.stages("loaded_gib")):
        found.append("the log does not say which stage a line is of: the largest stage stands beside it")
    if log.most("loaded_gib") is None:
        line = "Model loading took" if log.engine == "vllm" else "Load weight end"
        found.append(
            f"the log has no line of the loaded weights ({line} …), the one term that must agree: no answer; give the "
            "log from its start"
        )
    others = [f"{count:,} of {ENGINES[name].split()[0]}" for name, count in log.matched if count]
    if len(others) > 1:
        found.append(
            f"the log has lines of two engines ({' and '.join(others)}): it is read as {ENGINES[log.engine]}'s, the "
            "others are left out; give the log of one server"
        )
    return found


def _shown(document: dict[str, Any]) -> Any:
    from builder.engines.show import render

    return render(document)
