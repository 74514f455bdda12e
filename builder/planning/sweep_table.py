"""A sweep's rows as one table for people and one for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

GIB = 1 << 30
_STYLES = {
    "fits": "green",
    "done": "green",
    "too large": "yellow",
    "no": "yellow",
    "refused": "red",
    "failed": "bold red",
}
_FIGURES = (
    ("limiting\nrank", "limiting_rank"),
    ("largest\nrank GiB", "bytes"),
    ("free\nGiB", "free_bytes"),
    ("longest\nrequest", "longest_request"),
    ("tokens", "tokens"),
    ("requests", "requests"),
)
_WANTED = ("free_bytes", "limiting_rank", "bytes", "requests", "longest_request", "tokens")
_IN_GIB = ("bytes", "free_bytes")
_ROOM_FOR_REASONS = 150
"""Columns of a terminal from which on a reason stands in its row; on a narrower one it stands below."""


def render(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> RenderableType:
    """One line per row: what was swept, what came of it, and why."""
    return _SweepReport(rows, keys)


class _SweepReport:
    # Laid out when the width of the console is known.
    def __init__(self, rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> None:
        self.rows, self.keys = rows, keys

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wide = options.max_width >= _ROOM_FOR_REASONS
        measured = figure_names(self.rows)
        figures = [(name.replace("_", "\n", 1), name) for name in measured] or list(_FIGURES)
        while not measured and len(figures) > 1 and self._width(console, figures) > options.max_width:
            figures.pop(max(range(len(figures)), key=lambda at: _WANTED.index(figures[at][1])))
        yield self._table(figures, wide=wide)
        counts = Counter(row["status"] for row in self.rows)
        yield Text(f"{len(self.rows)} rows: {', '.join(f'{n} {status}' for status, n in counts.items())}")
        if any(row.get("dp", 1) > 1 for row in self.rows):
            yield Text("tokens and requests are those of one replica; a deployment holds dp times as many")
        if not wide:
            yield from self._reasons()
            if any(row["reason"] and row["status"] not in _SAID for row in self.rows):
                yield Text(f"what the others lack: output=json, or a terminal of {_ROOM_FOR_REASONS} columns")

    def _width(self, console: Console, figures: list[tuple[str, str]]) -> int:
        table = self._table(figures, wide=False)
        return console.measure(table, options=console.options.update(max_width=10_000)).maximum

    def _table(self, figures: list[tuple[str, str]], *, wide: bool) -> Table:
        table = Table(pad_edge=False, box=SIMPLE_HEAD)
        for key in self.keys:
            table.add_column(key, overflow="fold")
        table.add_column("status", no_wrap=True)
        for title, _ in figures:
            table.add_column(title, justify="right", no_wrap=True)
        if wide:
            table.add_column("reason", overflow="fold")
        for row in self.rows:
            swept = [Text(str(row["overrides"].get(key, ""))) for key in self.keys]
            status = Text(row["status"], style=_STYLES.get(row["status"], ""))
            cells = [_cell(name, row.get(name)) for _, name in figures]
            table.add_row(*swept, status, *cells, *([Text(_last_line(row["reason"]))] if wide else []))
        return table

    def _reasons(self) -> Iterator[RenderableType]:
        """Every reason once, with the number of rows that have it."""
        counts = Counter((row["status"], _last_line(row["reason"])) for row in self.rows if row["status"] in _SAID)
        for (status, reason), count in counts.items():
            yield Text(f"{count} {status}: {reason}")


_SAID = ("refused", "failed")


def csv_text(rows: Sequence[dict[str, Any]], figures: Sequence[str]) -> str:
    """The rows as CSV: one column per override that any row has, then status, reason, key and figures."""
    overrides = list(dict.fromkeys(key for row in rows for key in row["overrides"]))
    names = ("status", "reason", "key", *figures)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*overrides, *names])
    for row in rows:
        given = [_plain(row["overrides"].get(key)) for key in overrides]
        writer.writerow([*given, *(_plain(row.get(name)) for name in names)])
    return text.getvalue()


def figure_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the rows of a task that computes have measured, in order; none for plans."""
    known = {"overrides", "status", "reason", "key"}
    if any("limiting_rank" in row for row in rows):
        return []
    return list(dict.fromkeys(name for row in rows for name in row if name not in known))


def _last_line(reason: str | None) -> str:
    lines = (reason or "").strip().splitlines()
    return lines[-1] if lines else ""


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value / GIB:,.2f}" if name in _IN_GIB else f"{value:,}"


def _plain(value: object) -> object:
    if isinstance(value, list):
        return " ".join(str(item) for item in cast("list[object]", value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value
