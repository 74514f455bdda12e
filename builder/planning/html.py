"""``report.html``: one page with everything in it (table, pictures, assumptions), without any other file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ConfigError, Problem
from builder.planning import files, pictures, search_table

if TYPE_CHECKING:
    from builder.planning.document import Plan

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f4f4f4; padding: 0.8rem; white-space: pre-wrap; font-size: 0.85rem; }
svg { max-width: 100%; height: auto; }
"""


def write_plan(path: str, plan: Plan) -> None:
    """The page of one plan."""
    document = plan.to_dict()
    model = document["model"]
    drawn = ["memory"] + ([] if document["fits"] is None else ["capacity"])
    figures = [pictures.plan_figure(kind, plan) for kind in drawn]
    assumptions = [
        "All bytes are exact but those marked as estimates.",
        *(f"{name}: {formula}" for name, formula in document["formulas"].items()),
    ]
    parts = [
        _plan_text(document),
        *_figures(figures),
        _list("Assumptions", [*assumptions, *_settings(document)]),
        _list("Notes", document["notes"]),
    ]
    _write(path, f"{model['name']} on {document['hardware']['device']}", parts)


def write_search(path: str, document: dict[str, Any], points: Sequence[Mapping[str, Any]]) -> None:
    """The page of a search: the best, the front, and what was looked at; where nothing fits, what came nearest."""
    nearest = [document["nearest"]] if document["nearest"] else []
    titled = {"The best": document["best"], "The nearest": nearest, "The front": document["pareto"]}
    tables = [
        f"<h2>{title}</h2>{_table(search_table.columns({**document, 'best': rows}))}"
        for title, rows in titled.items()
        if rows
    ]
    first = (*document["best"], *nearest)[:1]
    again = [
        f"<h2>The first one again</h2><pre>python -m builder task=plan {escape(' '.join(one['overrides']))}</pre>"
        for one in first
    ]
    refused = [f"{one['plans']:,} plans: {one['reason']}" for one in document["refused"]]
    parts = [
        f"<p>{escape(search_table.headline(document))}</p>",
        f"<p><b>{escape(search_table.verdict(document))}</b> {escape(search_table.counts(document))}</p>",
        *tables[:1],
        *again,
        *_figures([pictures.sweep_figure(points, document["model"])]),
        *tables[1:],
        _list("Refused", refused),
        _list("Assumptions and notes", document["notes"]),
    ]
    _write(path, f"Search: {document['model']}", parts)


def write_sweep(path: str, columns: Iterable[tuple[str, list[str]]], points: Sequence[Mapping[str, Any]]) -> None:
    """The page of a sweep: every row, and the front."""
    parts = [
        _table(columns),
        *_figures([pictures.sweep_figure(points, "sweep")]),
        _list("Notes", ["the table has the tokens of a replica, the picture those of all dp replicas"]),
    ]
    _write(path, "Sweep", parts)


def _write(path: str, title: str, parts: Iterable[str]) -> None:
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{chr(10).join(parts)}\n</body></html>\n"
    )
    try:
        files.write(Path(path), page)
    except OSError as error:
        words = f"cannot be written ({error.strerror})"
        raise ConfigError([Problem("report.html", path, words, "give a file that can be written")]) from None


def _figures(figures: Iterable[Any]) -> list[str]:
    # Two pictures in one page must not share the names of their clip paths and glyphs.
    inline: list[str] = []
    for at, figure in enumerate(figures):
        svg = pictures.svg_text(figure)
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1f{at}-", svg)
        inline.append(f"<figure>{svg}</figure>")
    return inline


def _plan_text(document: dict[str, Any]) -> str:
    # The very tables of the terminal, as text.
    from rich.console import Console

    from builder.planning.table import render

    text = io.StringIO()
    Console(file=text, width=140, no_color=True).print(render(document))
    return f"<pre>{escape(text.getvalue())}</pre>"


def _settings(document: dict[str, Any]) -> list[str]:
    runtime = document["runtime"]
    return [f"runtime.{name}={value}" for name, value in runtime.items()]


def _table(columns: Iterable[tuple[str, list[str]]]) -> str:
    found = list(columns)
    head = "".join(f"<th>{escape(title)}</th>" for title, _ in found)
    rows = zip(*(cells for _, cells in found), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>\n" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<h2>{title}</h2><ul>\n{items}</ul>" if items else ""
