"""Pictures of a plan and of a sweep, drawn with matplotlib (the extra ``plot``), loaded when one is asked for."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ConfigError, Problem
from builder.planning import files
from builder.planning.pictures_style import settings
from builder.schema.config import BuildConfig
from builder.schema.groups import ReportConfig

if TYPE_CHECKING:
    from builder.planning.document import Plan

INSTALL = "install it: pip install 'builder[plot]'"
DPI = 144


def check(config: BuildConfig, *, sweep: bool = False) -> None:
    """Refuse what cannot be drawn or written, before anything is planned. sweep: a sweep or a search asks."""
    found = list(report_problems(config, sweep=sweep))
    if found:
        raise ConfigError(found)


def report_problems(config: BuildConfig, *, sweep: bool) -> Iterator[Problem]:
    """Everything wrong with ``report.*``."""
    report = config.report
    if report is None:
        return
    yield from file_problems(report, config.out)
    if report.plot == "sweep" and not sweep:
        works = "use memory or capacity, a sweep (-m), or task=search"
        yield Problem("report.plot", "sweep", "draws a sweep or a search, and this is one plan", works)
    if report.plot == "capacity" and config.hardware.total_bytes is None and not sweep:
        reason = f"hardware={config.hardware.vendor} has no device memory to judge"
        yield Problem("report.plot", "capacity", reason, "name another hardware=, or use report.plot=memory")


def file_problems(report: ReportConfig, out: str | None) -> Iterator[Problem]:
    """What drawing and writing need."""
    asked = {"report.plot": report.plot, "report.html": report.html}
    if importlib.util.find_spec("matplotlib") is None:
        yield from (Problem(k, v, "needs matplotlib, which is not installed", INSTALL) for k, v in asked.items() if v)
    if report.plot is not None and out is None:
        yield Problem("report.plot", report.plot, "is written to a folder, and there is none", "add out=DIR")
    if report.html is not None:
        yield from _path_problems(report.html)


def _path_problems(path: str) -> Iterator[Problem]:
    target, works = Path(path), "give a file in a folder that exists"
    if target.is_dir():
        yield Problem("report.html", path, "is a folder", works)
    elif not target.absolute().parent.is_dir():
        yield Problem("report.html", path, "its folder does not exist", works)


def save_plan(plan: Plan) -> None:
    """The picture of one plan that ``report.plot`` asks for, in ``out``."""
    report, out = plan.config.report, plan.config.out
    if report is not None and report.plot is not None:
        kind = report.plot
        save(out, kind, lambda: plan_figure(kind, plan))


def plan_figure(kind: str, plan: Plan) -> Any:
    """memory or capacity of one plan, as a matplotlib figure."""
    from builder.planning import pictures_plan

    return pictures_plan.memory(plan) if kind == "memory" else pictures_plan.capacity(plan)


def sweep_figure(points: Sequence[Mapping[str, Any]], title: str) -> Any:
    """Tokens held over devices, as a matplotlib figure; points: group, devices, tokens, front, label."""
    from builder.planning import pictures_sweep

    return pictures_sweep.front(points, title)


def save(out: str | None, name: str, draw: Callable[[], Any]) -> None:
    """Write a figure to the folder ``out`` as PNG and SVG."""
    assert out is not None, "checked before"
    folder, figure = files.prepare(out), draw()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
    files.write(folder / f"{name}.png", picture.getvalue())
    files.write(folder / f"{name}.svg", svg_text(figure))


def svg_text(figure: Any) -> str:
    """A figure as SVG, the same text for the same figure."""
    with settings():
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
