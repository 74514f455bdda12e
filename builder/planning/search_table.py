"""The answer of a search as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]
GIB = 1 << 30
REASONS_SHOWN = 6


def columns(document: Row) -> list[tuple[str, list[str]]]:
    """Title and cells of every column; one that says the same in every row is left out, if it is no axis."""
    rows: list[Row] = document["best"]
    always = [
        ("device", [row["device"] for row in rows]),
        ("devices", [str(row["devices"]) for row in rows]),
        *((axis, [str(row[axis]) for row in rows]) for axis in ("pp", "tp", "ep", "dp")),
    ]
    varied = [
        ("shared expert", [row["shared_expert"] for row in rows]),
        ("spec", [_spec(row) for row in rows]),
        ("cache", [row["cache"] for row in rows]),
        ("batched", [f"{row['max_num_batched_tokens']:,}" for row in rows]),
        ("seqs", [f"{row['max_num_seqs']:,}" for row in rows]),
        ("length", [f"{row['max_model_len']:,}" for row in rows]),
        ("fraction", [f"{row['memory_fraction']:.4f}" for row in rows]),
    ]
    figures = [
        ("headroom GiB", [f"{row['headroom_bytes'] / GIB:,.2f}" for row in rows]),
        ("tokens", [f"{row['tokens']:,}" for row in rows]),
        ("requests", [f"{row['requests']:,}" for row in rows]),
        ("longest", [f"{row['longest_request']:,}" for row in rows]),
    ]
    if any(row["at_once"] < row["requests"] for row in rows):  # seats end before the memory does
        figures.append(("at once", [f"{row['at_once']:,}" for row in rows]))
    kept = [(title, cells) for title, cells in varied if len(set(cells)) > 1]
    return [*always, *kept, *figures]


def headline(document: Row) -> str:
    """The question."""
    limits = document["limits"]
    length = f"{limits['max_model_len']:,}" if limits["max_model_len"] else "any"
    requests = f"{limits['requests']:,} requests" if limits["requests"] else "one request a replica"
    return (
        f"{document['model']}: up to {limits['gpus']:,} devices, {requests} of {length} tokens; "
        f"best by {document['objective']}"
    )


def verdict(document: Row) -> str:
    """The answer in one sentence."""
    if not document["best"]:
        return _missing(document)
    first = document["best"][0]
    words = {
        "memory_fraction": f"The smallest runtime.memory_fraction that holds it is {first['memory_fraction']:.4f}.",
        "devices": f"The fewest devices that hold it are {first['devices']:,} of {first['device']}.",
        "context": f"The longest max_model_len is {first['max_model_len']:,} tokens.",
    }
    return words.get(document["ask"], f"{document['fitting']:,} plans fit.")


def counts(document: Row) -> str:
    """How much was looked at."""
    timing = document["timing"]
    return (
        f"{document['looked_at']:,} plans looked at, {document['legal']:,} legal, {document['fitting']:,} kept as "
        f"fitting; {timing['seconds']:.2f} s, {timing['plans_per_second']:,} a second."
    )


def _missing(document: Row) -> str:
    nearest = document["nearest"]
    if nearest is None:
        return "Nothing fits: no plan is legal."
    missing = nearest["missing_bytes"]
    return (
        f"Nothing fits. The nearest lacks {missing:,} bytes ({missing / GIB:,.2f} GiB) on a rank: "
        f"{' '.join(nearest['overrides'])}"
    )


def _spec(row: Row) -> str:
    drafts = row["spec"]["num_speculative_tokens"]
    return f"{row['spec']['method']} k={drafts}" if drafts else row["spec"]["method"]


def render(document: Row) -> RenderableType:
    """The whole report."""
    return _Report(document)


class _Report:
    def __init__(self, document: Row) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        document = self.document
        yield Text(headline(document))
        if document["best"]:
            yield _fitting_table(document, console, options)
        yield Text(verdict(document), style="bold")
        yield Text(counts(document))
        refused = document["refused"]
        for one in refused[:REASONS_SHOWN]:
            yield Text(f"{one['plans']:,} refused: {one['reason']}")
        if len(refused) > REASONS_SHOWN:
            rest = sum(one["plans"] for one in refused[REASONS_SHOWN:])
            yield Text(f"{rest:,} refused for {len(refused) - REASONS_SHOWN:,} other reasons (output=json lists them)")
        if document["best"]:
            yield Text(f"The first one again: task=plan {' '.join(document['best'][0]['overrides'])}")
        for note in document["notes"]:
            yield Text(f"Note: {note}.")


_LESS_WANTED = ("headroom GiB", "longest", "at once", "requests", "fraction", "seqs", "batched")
"""Columns that a narrow terminal does without, first these."""


def _fitting_table(document: Row, console: Console, options: ConsoleOptions) -> Table:
    found = columns(document)
    for title in ("", *_LESS_WANTED):
        found = [column for column in found if column[0] != title]
        table = _table(found)
        if console.measure(table, options=options.update(max_width=10_000)).maximum <= options.max_width:
            break
    return _table(found)


def _table(found: list[tuple[str, list[str]]]) -> Table:
    table = Table(pad_edge=False, box=SIMPLE_HEAD)
    for at, (title, _) in enumerate(found):
        table.add_column(title.replace(" ", "\n"), justify="right" if at else "left", no_wrap=True)
    for cells in zip(*(cells for _, cells in found), strict=True):
        table.add_row(*cells)
    return table
