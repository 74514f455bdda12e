"""``-m``: rows from one command line, one table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from builder import __version__, cli
from builder.composition.rows import SweepLine, row_overrides, split_rows
from builder.planning import files, pictures_rows
from builder.planning.sweep import FAILED, Row, RowLine, Sweep, plan_row

if TYPE_CHECKING:
    from builder.composition import Composer
    from builder.schema.config import BuildConfig

SECONDS_BETWEEN_LINES = 2.0
WIDTH = 180
"""Of the table where nobody says how wide it may be."""


def run_sweep(composer: Composer, arguments: list[str]) -> int:
    """Run every row. 0, or 1 if a row failed in a way that it must not."""
    line = split_rows(composer, arguments)
    pictures_rows.check(line.report, line.out)
    folder = files.prepare(line.out) if line.out is not None else None
    lines = [RowLine(row_overrides(row), _composes(composer, row)) for row in line.rows]
    rows = Sweep(folder, cli.warn, _launch(composer, line), __version__).run(lines, _progress(len(lines)))
    pictures_rows.write(line.report, line.out, rows, line.keys)
    _show(line, rows)
    return 1 if any(row["status"] == FAILED for row in rows) else 0


def _composes(composer: Composer, row: tuple[str, ...]) -> Callable[[], Any]:
    return lambda: composer.compose(row).config()


def _launch(composer: Composer, line: SweepLine) -> Callable[[list[BuildConfig]], list[Row]] | None:
    """Hydra's launcher if one was named; the basic one is this process itself."""
    if line.launcher == "basic":
        return None
    from builder.composition.launch import launch

    return lambda configs: launch(composer.groups, line.hydra, plan_row, configs)


def _progress(total: int) -> Callable[[int], None]:
    """A line on standard error now and then: overwritten on a terminal, one below the other elsewhere."""
    latest = time.monotonic()
    terminal = sys.stderr.isatty()

    def each(done: int) -> None:
        nonlocal latest
        if time.monotonic() - latest > (0.1 if terminal else SECONDS_BETWEEN_LINES):
            latest = time.monotonic()
            end = "\r" if terminal else "\n"
            print(f"builder: {done} of {total} rows", end=end, file=sys.stderr, flush=True)

    return each


def _show(line: SweepLine, rows: list[Row]) -> None:
    if line.output == "json":
        cli.print_json(rows)
    else:
        from builder.planning.sweep_table import render

        cli.print_table(render(rows, line.keys), WIDTH)
