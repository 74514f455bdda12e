"""What people see of the tasks that compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def comparison(document: dict[str, Any]) -> RenderableType:
    """The differences of task=verify."""
    table = Table("output", "largest difference", pad_edge=False)
    for name, difference in document["max_abs_diff"].items():
        table.add_row(name, "no number" if difference is None else f"{difference:.2e}")
    verdict = "All within" if document["ok"] else "Not all within"
    return Group(table, Text(f"{verdict} the tolerance of {document['tolerance']:g}.", style="bold"))


def forward_speed(document: dict[str, Any]) -> RenderableType:
    """The speeds of task=bench bench.what=forward."""
    lines = [
        f"{phase}: {document[phase]['tokens_per_second']:,.1f} tokens per second ({document[phase]['tokens']} tokens)"
        for phase in ("prefill", "decode")
    ]
    return Text("\n".join([f"{document['model']}, {document['dtype']}", *lines]))


def stash_table(document: dict[str, Any]) -> RenderableType:
    """The three ways of task=bench bench.what=stash."""
    table = Table("tokens", "stash", "no stash", "stash by copy", "stash in place", pad_edge=False)
    for case in document["cases"]:
        ways = (case[way] for way in ("none", "copy", "in_place"))
        cells = [f"{way['seconds'] * 1e6:,.0f} µs, {way['share_of_copy_bandwidth']:.0%}" for way in ways]
        table.add_row(f"{case['tokens']:,}", f"{case['stash_bytes'] / 2**20:,.2f} MiB", *cells)
    speed = document["copy_bandwidth"] / 1e9
    heading = f"The mix that ends the last layer of {document['model']}, {document['dtype']} on {document['device']}"
    return Group(
        Text(heading), table, Text(f"The shares are of what this machine copies: {speed:,.1f} GB/s, read and written.")
    )


def generation(document: dict[str, Any], *, texts_shown: bool) -> RenderableType:
    """The tokens of task=generate, as text where there is a tokenizer."""
    return Group(*_generation(document, texts_shown=texts_shown))


def _generation(document: dict[str, Any], *, texts_shown: bool) -> Iterator[RenderableType]:
    if texts_shown:
        yield Text()
    else:
        for number, tokens in enumerate(document["token_ids"]):
            yield Text(f"[{number}] ", style="bold", end="")
            yield Text(document["text"][number] if document["text"] else str(tokens))
    count = sum(map(len, document["token_ids"]))
    yield Text(
        f"{count} tokens in {document['steps']} steps, {document['tokens_per_second']:,.1f} tokens per second.",
        style="dim",
    )
