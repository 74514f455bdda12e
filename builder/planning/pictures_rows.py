"""What ``report.*`` asks of a sweep: the picture of its front, and a page with every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from builder.errors import ConfigError, Problem
from builder.planning import pictures
from builder.schema.fields import field_problems
from builder.schema.groups import ReportConfig

Row = dict[str, Any]
HARDWARE = ("hardware", "hardware.device")


def check(report: ReportConfig, out: str | None) -> None:
    """Refuse what a sweep cannot draw, before its rows are planned. Raises ConfigError."""
    found = [*field_problems(report, "report"), *pictures.file_problems(report, out)]
    if report.plot in ("memory", "capacity"):
        works = "use report.plot=sweep, or leave -m out"
        found.append(Problem("report.plot", report.plot, "draws one plan, and this is a sweep", works))
    if found:
        raise ConfigError(found)


def write(report: ReportConfig, out: str | None, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Draw and write. keys: what varies from row to row."""
    if report.plot is None and report.html is None:
        return
    from builder.planning import html
    from builder.planning.pictures_sweep import mark_front

    marked = mark_front(list(_points(rows, keys)))
    if report.plot is not None:
        pictures.save(out, "sweep", lambda: pictures.sweep_figure(marked, "sweep"))
    if report.html is not None:
        html.write_sweep(report.html, list(_columns(rows, keys)), marked)


def _points(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        given = row["overrides"]
        if row["status"] == "fits":
            yield {
                "group": " ".join(str(given[key]) for key in HARDWARE if key in given) or "fits",
                "devices": row["ranks"],
                "tokens": row["tokens"] * row["dp"],
                "label": " ".join(f"{key}={given[key]}" for key in keys if key in given and key not in HARDWARE),
            }


def _columns(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for key in keys:
        yield key, [str(row["overrides"].get(key, "")) for row in rows]
    yield "status", [row["status"] for row in rows]
    for name in ("ranks", "bytes", "free_bytes", "longest_request", "tokens", "requests"):
        yield name.replace("_", " "), [_number(row.get(name)) for row in rows]
    yield "reason", [" ".join(str(row["reason"] or "").split()[:60]) for row in rows]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
