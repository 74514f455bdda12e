"""A sweep's command line, split into the command lines of its rows. The grammar is Hydra's: lists, range(), glob()."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from builder.composition.composer import Composer
from builder.composition.overrides import is_literal, parse, split_key
from builder.composition.tree import get, has
from builder.errors import ConfigError, Problem
from builder.schema.groups import ReportConfig

MOST_ROWS = 100_000
FIXED = ("output", "report.plot")
"""Keys that belong to the sweep as a whole, as do ``out`` and ``report.html``, which are free text."""
OF_THE_SWEEP = (*FIXED, "out", "report.html")


@dataclass(frozen=True, slots=True)
class SweepLine:
    """keys: what varies; rows: one command line each; out, output, report and Hydra's own items: of the whole sweep."""

    keys: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    out: str | None
    output: str
    launcher: str
    hydra: tuple[str, ...]
    report: ReportConfig


def split_rows(composer: Composer, arguments: Iterable[str]) -> SweepLine:
    """Split a sweep's command line.

    Raises:
        ConfigError: its text cannot be read, or it sweeps over what cannot vary. A row's own faults are the row's.
    """
    literal, others = _parted(arguments)
    swept = {text: override for text, override in others if override.is_sweep_override()}
    hydra = [text for text, override in others if override.is_hydra_override() and text not in swept]
    fixed = [text for text, override in others if _name(override) in FIXED and text not in swept]
    base = composer.compose([*literal.values(), *hydra, *fixed])
    wrong = [_cannot_sweep(override) for override in swept.values() if _is_whole(override)]
    wrong += [problem for problem in base.problems if problem.key.startswith(("hydra", *FIXED, "out"))]
    if wrong:
        raise ConfigError(wrong)
    lists = {override.get_key_element(): list(_values(composer, override)) for _, override in others}
    lists |= {key: [text] for key, text in literal.items()}
    if math.prod(len(texts) for texts in lists.values()) > MOST_ROWS:
        raise ConfigError([Problem("-m", None, f"asks for more than {MOST_ROWS:,} rows", "sweep over fewer values")])
    keys = tuple(_name(override) for override in swept.values())
    rows = tuple(itertools.product(*lists.values()))
    asked = {name: get(base.tree, f"report.{name}") for name in ("html", "plot") if has(base.tree, f"report.{name}")}
    report = ReportConfig(**asked)
    return SweepLine(keys, rows, base.tree["out"], str(base.tree["output"]), _launcher(hydra), tuple(hydra), report)


def row_overrides(row: Sequence[str]) -> dict[str, Any]:
    """The overrides of one row by key, values as Hydra's grammar reads them; those of the whole sweep left out."""
    found: dict[str, Any] = {}
    for text in row:
        _, key, raw = split_key(text)
        if key not in OF_THE_SWEEP and not key.startswith(("hydra.", "hydra/")):
            found[key] = raw if is_literal(text) else _value(text)
    return found


@cache
def _value(text: str) -> Any:
    return parse(text).value()


def _launcher(hydra: Iterable[str]) -> str:
    chosen = {split_key(text)[1]: split_key(text)[2] for text in hydra}
    sweeper = chosen.get("hydra/sweeper", "basic")
    if sweeper != "basic":
        raise ConfigError([Problem("hydra/sweeper", sweeper, "rows are split by builder itself", "leave it out")])
    return chosen.get("hydra/launcher", "basic")


def _parted(arguments: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, Override]]]:
    literal: dict[str, str] = {}
    others: dict[str, tuple[str, Override]] = {}
    problems: list[Problem] = []
    for text in arguments:
        if is_literal(text):
            literal[split_key(text)[1]] = text
            continue
        try:
            override = parse(text)
            others[_name(override)] = (text, override)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return literal, list(others.values())


def _name(override: Override) -> str:
    return override.get_key_element().lstrip("+")


def _is_whole(override: Override) -> bool:
    return override.is_hydra_override() or _name(override) in FIXED or not override.is_discrete_sweep()


def _cannot_sweep(override: Override) -> Problem:
    text = override.get_value_string()
    if override.is_hydra_override() or _name(override) in FIXED:
        return Problem(_name(override), text, "belongs to the sweep as a whole", "give one value")
    return Problem(_name(override), text, "cannot be counted out", "use a list (1,2,4), range(1,5) or choice(1,2,4)")


def _values(composer: Composer, override: Override) -> Iterator[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        yield f"{key}={override.get_value_element_as_str()}"
        return
    try:
        with composer.groups.hydra():
            override.config_loader = composer.groups.loader
            texts = list(override.sweep_string_iterator())
    except HydraException as error:
        raise ConfigError([Problem(_name(override), override.get_value_string(), str(error).rstrip("."))]) from None
    if not texts:
        words = "matches no option"
        raise ConfigError([Problem(_name(override), override.get_value_string(), words, "see --help for the options")])
    yield from (f"{key}={text}" for text in texts)
