"""The plan: what every rank holds, costs and has room for. No torch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from builder.assembly.measure import footprint
from builder.assembly.sharding import UNSPLIT, Shards, values_of
from builder.assembly.stages import (
    Assembly,
    RankPlace,
    assemble,
    counted_parts,
    official,
    official_files,
    stage_cache,
)
from builder.components.base.spec import Account, ComponentSpec, Origin, walk
from builder.components.stage.spec import StageSpec
from builder.errors import ConfigError
from builder.planning.activations import FORMULA, activation_bytes
from builder.planning.capacity import (
    ACTIVATIONS,
    BESIDE_THE_POOLS,
    budget_bytes,
    capacity,
    free_bytes,
    given_bytes,
    most_admitted,
    whole_capacity,
)
from builder.planning.engine_reserve import reserve_of
from builder.planning.engine_terms import engine_terms, facts_of, message_bytes_per_token, named_engine, without_state
from builder.planning.engine_terms_pages import Pages
from builder.planning.engine_terms_pools import Pools
from builder.planning.notes import absences, notes
from builder.planning.rank import RankPlan
from builder.planning.rules import Finding, findings, refusals
from builder.schema.config import BuildConfig
from builder.schema.model import LAYER_KINDS

SCHEMA_VERSION = 1

COUNTED = (
    "embedding",
    *LAYER_KINDS,
    "hash_router",
    "router",
    "mtp_stash",
    "aux_hidden_tap",
    "mtp_drafter",
    "dspark_drafter",
    "draft_model",
    "hc_head",
    "norm",
    "lm_head",
)
"""The parts that every report counts, in the order of a forward pass; an absent one counts 0. Others follow."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a whole configuration. whole: the unsplit model and its drafter, as the official files store them."""

    assembly: Assembly
    whole: StageSpec
    ranks: tuple[RankPlan, ...]

    @property
    def config(self) -> BuildConfig:
        """The configuration that was planned."""
        return self.assembly.config

    @property
    def fits(self) -> bool | None:
        """All ranks fit; None where no memory is judged."""
        verdicts = [rank.fits for rank in self.ranks]
        return None if None in verdicts else all(verdicts)

    @property
    def limiting_rank(self) -> int:
        """The rank with the least headroom, or on cpu the largest; the lowest number on ties."""

        def room(rank: RankPlan) -> int:
            if rank.headroom is not None:
                return rank.headroom
            return -rank.nbytes - rank.cache.nbytes(rank.longest)

        return min(self.ranks, key=lambda rank: (room(rank), rank.place.rank)).place.rank

    def to_dict(self) -> dict[str, Any]:
        """The JSON document, ``schema`` 1."""
        config = self.config
        files, own_files = official_files(self.whole)
        found = self.findings
        document: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "model": self._model(),
            "hardware": {
                "vendor": config.hardware.vendor,
                "device": config.hardware.device,
                "memory_bytes": config.hardware.total_bytes,
            },
            "parallel": {
                **{axis: getattr(config.parallel, axis) for axis in ("pp", "tp", "ep", "dp", "shared_expert")},
                "partition": list(self.assembly.partition),
            },
            "spec": {"method": config.spec.method, "num_speculative_tokens": config.spec.drafts},
            "cache": {"layout": config.cache.layout},
            "runtime": dataclasses.asdict(config.runtime),
            "checkpoint": {"tensors": files.tensors, "bytes": files.nbytes},
        }
        if named_engine(config) != "builder":
            document["engine"] = named_engine(config)
        if own_files.tensors:
            document["draft_checkpoint"] = {"tensors": own_files.tensors, "bytes": own_files.nbytes}
        return document | {
            "ranks": [rank.to_dict() for rank in self.ranks],
            "limiting_rank": self.limiting_rank,
            "fits": self.fits,
            "capacity": whole_capacity(config, self.ranks),
            "messages": {"bytes_per_token": message_bytes_per_token(config) if config.parallel.pp > 1 else 0},
            "formulas": {ACTIVATIONS: FORMULA} | self._engine_formulas(),
            "findings": [finding.to_dict() for finding in found],
            "notes": [*notes(self.assembly, self.whole), *map(str, found)],
        }

    @property
    def findings(self) -> list[Finding]:
        """What the rules say of it."""
        return findings(self.config, self.assembly, named_engine(self.config), self.ranks)

    def _engine_formulas(self) -> dict[str, str]:
        said: dict[str, list[str]] = {}
        for term in (term for rank in self.ranks for term in rank.terms):
            words = f"{term.formula} ({term.source})"
            if words not in said.setdefault(term.line, []):
                said[term.line].append(words)
        return {line: "; and ".join(words) for line, words in said.items()}

    def _model(self) -> dict[str, Any]:
        model = self.config.model
        kinds = Counter(model.layer_types)
        parameters, activated = _parameters(self.whole, model.num_experts_per_tok)
        return {
            "name": model.name,
            "parameters": parameters,
            "activated_parameters": activated,
            "layers": model.num_hidden_layers,
            "layer_kinds": {kind: kinds[kind] for kind in LAYER_KINDS},
        }


def plan(config: BuildConfig) -> Plan:
    """Plan a configuration that ``compose`` has checked. Raises ConfigError where the named engine refuses it."""
    assembly = assemble(config)
    if refused := refusals(config, assembly.partition, named_engine(config)):
        raise ConfigError(refused)
    planned: dict[tuple[int, int], RankPlan] = {}
    ranks: list[RankPlan] = []
    for place in assembly.places():
        # dp and ep ranks of a stage hold tensors of the same sizes: only the place differs.
        key = (place.pp, place.tp)
        if key not in planned:
            planned[key] = _plan_rank(assembly, place)
        ranks.append(dataclasses.replace(planned[key], place=place))
    return Plan(assembly, official(config), tuple(ranks))


def _plan_rank(assembly: Assembly, place: RankPlace) -> RankPlan:
    config, stage, last = assembly.config, assembly.stages[place.pp], place.pp == assembly.config.parallel.pp - 1
    shards = assembly.shards(place)
    booked, values = _booked(stage, shards)
    held = sum(booked.values())
    facts = facts_of(stage, shards, assembly.cache_format)
    terms = engine_terms(config, facts, place.pp)
    booked |= {ACTIVATIONS: activation_bytes(config, last_stage=last)} | given_bytes(config)
    for term in terms:
        booked[term.line] = booked.get(term.line, 0) + term.nbytes
    cost, counts = without_state(config, facts, stage_cache(stage, assembly.cache_format)), counted_parts(stage)
    beside = sum(size for line, size in booked.items() if line in BESIDE_THE_POOLS)
    free = free_bytes(config, sum(booked.values()) - beside, beside)
    reserve = reserve_of(config, stage, assembly.cache_format)
    return RankPlan(
        place=place,
        layers=(stage.first, stage.last + 1),
        components={name: counts[name] for name in (*COUNTED, *sorted(counts.keys() - set(COUNTED)))},
        parameters=values,
        booked=booked,
        cache=cost,
        budget=budget_bytes(config),
        free=free,
        longest=config.runtime.max_model_len,
        capacity=None if free is None else capacity(config, cost, free, most_admitted(config, reserve, free)),
        absent=absences(config, last_stage=last),
        terms=terms,
        load_peak=held + _largest_tensor(assembly.files[place.pp]),
        pages=reserve if isinstance(reserve, Pages) else None,
        pools=reserve if isinstance(reserve, Pools) else None,
    )


def _booked(stage: StageSpec, shards: Shards) -> tuple[dict[str, int], int]:
    # Bytes by account, and logical values, of all parts of a stage on one rank.
    booked = {account.value: 0 for account in Account}
    values = 0
    for _, member in stage.members:
        measured = footprint(member, shards)
        values += measured.values
        for account, size in measured.booked:
            booked[account.value] += size
    return booked, values


@lru_cache(maxsize=64)
def _largest_tensor(files: StageSpec) -> int:
    # The largest single tensor that the stage's files hold.
    tensors = (declared.tensor for declared in walk(files))
    return max((t.nbytes // (t.stacked or 1) for t in tensors if t.origin is Origin.CHECKPOINT), default=0)


def _parameters(whole: StageSpec, active: int) -> tuple[int, int]:
    # All of the backbone, and those that one token passes through (the input embedding is a look-up).
    total = idle = 0
    for name, spec in whole.members:
        if spec.account is not None:
            continue
        values, inactive = _values(spec, active)
        total += values
        idle += values if name == "embed" else inactive
    return total, total - idle


@lru_cache(maxsize=1024)
def _values(spec: ComponentSpec, active: int) -> tuple[int, int]:
    # Values of a part, and how many of them belong to experts that a token does not use.
    tensors = [declared.tensor for declared in walk(spec)]
    inactive = sum(values_of(t, UNSPLIT) // t.stacked * (t.stacked - active) for t in tensors if t.stacked)
    return sum(values_of(t, UNSPLIT) for t in tensors), inactive
