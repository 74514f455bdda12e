"""A comparison as a table for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from builder.planning.table import gib


def render(document: dict[str, Any]) -> RenderableType:
    """The comparison of a log with a plan."""
    table = Table(title=f"{document['version']} log beside the plan", title_justify="left")
    table.add_column("term", overflow="fold")
    for heading in ("plan", "log", "difference"):
        table.add_column(heading, justify="right")
    table.add_column("", justify="left")
    for term in document["terms"]:
        name = term["term"] if term["stage"] is None else f"{term['term']}, stage {term['stage']}"
        percent = "" if term["percent"] is None else f"{term['percent']:+.1f} %"
        verdict = {True: "agrees", False: "differs", None: ""}[term["agrees"]]
        table.add_row(name, _value(term, "plan"), _value(term, "log"), percent, verdict)
    answer = {True: "The log agrees with the plan.", False: "The log differs from the plan.", None: "No answer."}
    lines = [answer[document["agrees"]]]
    lines += [f"{term['term']}: {term['explanation']}" for term in document["terms"]]
    lines += [f"note: {note}" for note in document["notes"]]
    lines += [f"not read, {'line ' * line[0].isdigit()}{line}" for line in document["unmatched_lines"]]
    return Group(table, Text("\n".join(lines)))


def _value(term: dict[str, Any], side: str) -> str:
    value = term[side]
    if value is None:
        return "-"
    match term["unit"]:
        case "bytes":
            return gib(value)
        case "fraction":
            return f"{value:.4f}"
        case "seconds":
            return f"{value:,.0f} s"
        case _:
            return f"{value:,.2f}".removesuffix(".00")
