"""Rules: what makes a deployment fail, or go wrong without a word, each with its arithmetic and where it was seen.

A rule of our own arithmetic holds for everyone. A rule that only an engine or its kernels impose is a note, and a
refusal (or a warning) only where that engine is named: our own runtime does not share the limit.
A new rule is one entry in ``rules_general`` or ``rules_engines``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from builder.assembly.stages import Assembly
from builder.errors import Problem
from builder.planning.engine_terms import architecture
from builder.planning.rank import RankPlan
from builder.schema.config import BuildConfig

NOTE, WARNING, REFUSAL = "note", "warning", "refusal"
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM"}


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule looks at. partition: layers of every stage; engine: the named one; ranks: empty where nothing was
    planned yet.
    """

    config: BuildConfig
    partition: Sequence[int]
    engine: str = "builder"
    ranks: Sequence[RankPlan] = ()

    @property
    def arch(self) -> str:
        """The device's architecture; empty where it is not known."""
        return architecture(self.config)

    @property
    def sm(self) -> int:
        """CUDA compute capability, 90 for sm_90; 0 elsewhere."""
        return int(self.arch[3:]) if self.arch.startswith("sm_") else 0


@dataclass(frozen=True, slots=True)
class Said:
    """What a rule found. key, value: the setting it is about; text: the arithmetic; works: the nearest that works."""

    key: str
    value: object
    text: str
    works: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry. engines: those that impose it, none for arithmetic that holds anyway; severity: where one is named."""

    name: str
    severity: str
    source: str
    check: Callable[[Situation], Iterator[Said]]
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says of a configuration."""

    rule: str
    severity: str
    engines: tuple[str, ...]
    said: Said
    source: str

    def __str__(self) -> str:
        who = " and ".join(ENGINE_NAMES[engine] for engine in self.engines)
        works = f"; {self.said.works}" if self.said.works else ""
        return f"{f'{who}: ' if who else ''}{self.said.text}{works} ({self.source})"

    def problem(self) -> Problem:
        """As a refusal."""
        return Problem(self.said.key, self.said.value, f"{self.said.text} ({self.source})", self.said.works)

    def to_dict(self) -> dict[str, Any]:
        """As the report has it."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "engines": list(self.engines),
            "key": self.said.key,
            "message": str(self),
            "text": self.said.text,
            "works": self.said.works,
            "source": self.source,
        }


def findings(
    config: BuildConfig, assembly: Assembly, engine: str = "builder", ranks: Sequence[RankPlan] = ()
) -> list[Finding]:
    """What all rules say, refusals first. With an engine named, other engines' rules are left out."""
    from builder.planning.rules_engines import ENGINE_RULES
    from builder.planning.rules_general import GENERAL_RULES

    situation = Situation(config, assembly.partition, engine, ranks)
    found: list[Finding] = []
    for rule in (*GENERAL_RULES, *ENGINE_RULES):
        named = engine in rule.engines
        if rule.engines and engine != "builder" and not named:
            continue
        severity = NOTE if rule.severity == REFUSAL and not named and rule.engines else rule.severity
        engines = (engine,) if named else rule.engines
        found += [Finding(rule.name, severity, engines, said, rule.source) for said in rule.check(situation)]
    order = (REFUSAL, WARNING, NOTE)
    return sorted(found, key=lambda one: order.index(one.severity))


def refusals(config: BuildConfig, partition: Sequence[int], engine: str) -> list[Problem]:
    """The problems of a named engine; none for our own runtime."""
    from builder.planning.rules_engines import ENGINE_RULES

    situation = Situation(config, partition, engine)
    return [
        Finding(rule.name, REFUSAL, (engine,), said, rule.source).problem()
        for rule in ENGINE_RULES
        if rule.severity == REFUSAL and engine in rule.engines
        for said in rule.check(situation)
    ]
