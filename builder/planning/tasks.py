"""The tasks that plan, and the way from a task's name to its function (``schema.config.TASKS`` registers them)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.planning import pictures
from builder.planning.document import Plan, plan
from builder.schema.config import TASKS, BuildConfig

PLANS = ("build", "plan")
"""Tasks whose document is a plan."""

SWEPT = (*PLANS, "generate", "verify", "bench")
"""Tasks that a sweep can make rows of: of a plan, or of the figures that an outcome brings."""


def runner(task: str) -> Callable[[BuildConfig], Outcome]:
    """The function of a task. Raises ConfigError for one that is not there yet."""
    if not TASKS[task]:
        here = ", ".join(f"task={name}" for name, function in TASKS.items() if function)
        raise ConfigError([_later("task", task, f"this version has {here}")])
    module, _, function = TASKS[task].partition(":")
    return getattr(importlib.import_module(module), function)


def run_plan(config: BuildConfig) -> Outcome:
    """Plan without torch."""
    _refuse_later_keys(config)
    planned = plan(config)
    _report(planned)
    return _outcome(planned)


def run_build(config: BuildConfig) -> Outcome:
    """Plan, then assemble every rank on the meta device and hold it against the declaration."""
    from builder.assembly.build import check

    _refuse_later_keys(config)
    planned = plan(config)
    check(planned.assembly)
    _report(planned)
    return _outcome(planned)


def _outcome(planned: Plan) -> Outcome:
    document = planned.to_dict()
    return Outcome(document, 1 if planned.fits is False else 0, lambda: _table(document), "plan.json")


def _report(planned: Plan) -> None:
    report = planned.config.report
    if report is not None and report.plot is not None:
        pictures.save_plan(planned)
    if report is not None and report.html is not None:
        from builder.planning import html

        html.write_plan(report.html, planned)


def _table(document: dict[str, Any]) -> Any:
    from builder.planning.table import render

    return render(document)


def _refuse_later_keys(config: BuildConfig) -> None:
    found = list(pictures.report_problems(config, sweep=False))
    if found:
        raise ConfigError(found)


def _later(key: str, value: str, works: str) -> Problem:
    return Problem(key, value, "is known but not part of this version yet", works)
