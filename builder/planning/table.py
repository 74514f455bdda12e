"""The plan as tables for people: stages as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from builder.schema.model import LAYER_KINDS

Rank = dict[str, Any]

_COMPONENT_ROWS = {
    "embedding": "embedding",
    **{kind: f"{kind} layers" for kind in LAYER_KINDS},
    "hash_router": "hash routers",
    "router": "learned routers",
    "hc_head": "hc_head",
    "norm": "final norm",
    "lm_head": "lm_head",
    "mtp_stash": "MTP stash",
    "aux_hidden_tap": "aux hidden tap",
}
_BYTE_ROWS = {
    "weights": "weights",
    "drafter": "drafter",
    "mtp_stash": "MTP stash",
    "aux_hidden": "aux hidden states",
    "buffers": "buffers",
    "activations": "activations (estimate)",
    "engine_weights": "engine: weights it adds",
    "engine_copies": "engine: copies of weights",
    "engine_workspace": "engine: workspace",
    "engine_state": "engine: state of slots",
    "messages": "pipeline messages",
    "graphs": "graphs (given)",
    "communication": "communication (given)",
    "other": "other processes (given)",
}
_LABEL_WIDTH, _STAGE_WIDTH = 31, 18


def render(document: dict[str, Any]) -> RenderableType:
    """The whole report of one plan. document: ``Plan.to_dict()``."""
    return _Report(document)


class _Report:
    # Laid out when the width of the console is known: as many stages abreast as it has room for.
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        document, stages = self.document, _largest_rank_of_each_stage(self.document)
        abreast = max(1, (options.max_width - _LABEL_WIDTH) // _STAGE_WIDTH)
        yield _headline(document)
        for start in range(0, len(stages), abreast):
            yield _stage_table(document, stages[start : start + abreast])
        yield from _footer(document, [rank for rank, _ in stages])


def gib(size: float | None) -> str:
    """Bytes as people read them, with the unit: 1 GiB = 2^30 B."""
    if size is None:
        return "-"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 1 << power:
            return f"{size / (1 << power):,.2f} {unit}"
    return f"{size:,.0f} B"


def _largest_rank_of_each_stage(document: dict[str, Any]) -> list[tuple[Rank, int]]:
    # The ranks of a stage differ by rows of the vocabulary at most; the limiting one speaks for its stage.
    stages: dict[int, list[Rank]] = {}
    for rank in document["ranks"]:
        stages.setdefault(rank["pp"], []).append(rank)
    return [(max(ranks, key=_needs), len(ranks)) for ranks in stages.values()]


def _needs(rank: Rank) -> int:
    return sum(rank["bytes"].values())


def _headline(document: dict[str, Any]) -> Text:
    model, parallel, hardware = document["model"], document["parallel"], document["hardware"]
    axes = " ".join(f"{axis}={parallel[axis]}" for axis in ("pp", "tp", "ep", "dp"))
    memory = f" ({gib(hardware['memory_bytes'])})" if hardware["memory_bytes"] else ""
    lines = (
        f"{model['name']}: {model['parameters']:,} parameters, {model['activated_parameters']:,} active per token, "
        f"{model['layers']} layers",
        f"{hardware['vendor']} {hardware['device']}{memory}, {axes}, spec={document['spec']['method']}, "
        f"cache={document['cache']['layout']}",
    )
    return Text("\n".join(lines))


def _stage_table(document: dict[str, Any], stages: list[tuple[Rank, int]]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("")
    for rank, count in stages:
        table.add_column(_column_title(rank, count, document["limiting_rank"]), justify="right")
    ranks = [rank for rank, _ in stages]
    for title, cells in _rows(ranks):
        table.add_row(title, *cells)
    table.add_section()
    for title, cells in _byte_rows(ranks):
        table.add_row(title, *cells)
    table.add_section()
    for title, cells in _capacity_rows(ranks, document["runtime"]):
        table.add_row(title, *cells)
    return table


def _column_title(rank: Rank, count: int, limiting: int) -> str:
    first = rank["rank"] if count == 1 else rank["pp"] * count
    ranks = f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"
    mark = "\nlimiting" if first <= limiting < first + count else ""
    return f"stage {rank['pp']}\n{ranks}{mark}"


def _rows(ranks: list[Rank]) -> Iterator[tuple[str, list[str]]]:
    yield "layers", [f"{rank['layers'][0]}-{rank['layers'][1] - 1}" for rank in ranks]
    for name, title in _COMPONENT_ROWS.items():
        if name == "mtp_stash" or any(rank["components"][name] for rank in ranks):
            yield title, [_count(rank, name) for rank in ranks]
    yield "drafter", [_drafter(rank) for rank in ranks]
    yield "parameters", [f"{rank['parameters']:,}" for rank in ranks]


def _count(rank: Rank, name: str) -> str:
    absent = "not built" if name in rank["absent"] else "-"
    return str(rank["components"][name] or absent)


def _drafter(rank: Rank) -> str:
    # A counted part without a row of its own is a drafter.
    built = [name for name, count in rank["components"].items() if count and name not in _COMPONENT_ROWS]
    return built[0] if built else "not built"


def _byte_rows(ranks: list[Rank]) -> Iterator[tuple[str, list[str]]]:
    for name, title in _BYTE_ROWS.items():
        if any(rank["bytes"].get(name) for rank in ranks):
            yield title, [gib(rank["bytes"].get(name, 0)) for rank in ranks]
    yield "needed before any request", [gib(_needs(rank)) for rank in ranks]
    yield "  in bytes", [f"{_needs(rank):,}" for rank in ranks]


def _capacity_rows(ranks: list[Rank], runtime: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    yield "peak while loading", [gib(rank["load_peak_bytes"]) for rank in ranks]
    yield "cache per request", [gib(rank["cache"]["bytes_per_request"]) for rank in ranks]
    yield "cache per token", [f"{rank['cache']['bytes_per_token']:,.3f} B" for rank in ranks]
    if any(rank["capacity"] is None for rank in ranks):
        return
    yield "free", [gib(rank["free_bytes"]) for rank in ranks]
    of_length = f"requests of {runtime['max_model_len']:,} tokens"
    figures: dict[str, Callable[[Rank], int]] = {
        of_length: lambda rank: rank["capacity"]["requests"],
        f"tokens in {runtime['max_num_seqs']} equal requests": lambda rank: rank["capacity"]["tokens"],
        "longest single request": lambda rank: rank["capacity"]["longest_request"],
    }
    for title, figure in figures.items():
        yield title, [f"{figure(rank):,}" for rank in ranks]
    yield "fits", ["yes" if rank["fits"] else "no" for rank in ranks]


def _footer(document: dict[str, Any], ranks: list[Rank]) -> Iterator[Text]:
    yield Text(_verdict(document), style="bold")
    yield from map(Text, _absences(ranks))
    files = document["checkpoint"]
    yield Text(f"Checkpoint: {files['tensors']:,} tensors, {files['bytes']:,} bytes.")
    if "draft_checkpoint" in document:
        draft = document["draft_checkpoint"]
        yield Text(f"Draft checkpoint: {draft['tensors']:,} tensors, {draft['bytes']:,} bytes.")
    yield from map(Text, _assumptions(document, ranks))
    found = document["findings"]
    warned = {finding["message"] for finding in found if finding["severity"] == "warning"}
    others = [finding for finding in found if finding["engines"]] if "engine" not in document else []
    hidden = {finding["message"] for finding in others}
    for note in document["notes"]:
        if note not in hidden:
            yield Text(f"{'Warning' if note in warned else 'Note'}: {note}.")
    if others:
        engines = sorted({engine for finding in others for engine in finding["engines"]})
        yield Text(
            f"Notes on engines: {len(others)}; see output=json, or name one: plan.engine={' or '.join(engines)}."
        )


def _assumptions(document: dict[str, Any], ranks: list[Rank]) -> Iterator[str]:
    # Every line that is not exact, with its formula; a line that the user gives only where he did.
    yield "All bytes are exact but the activations, estimated as " + document["formulas"]["activations"] + "."
    sure = {line: how for rank in ranks for line, how in rank["exactness"].items() if rank["bytes"].get(line)}
    for line, how in sure.items():
        if line != "activations" and (how != "exact" or line in document["formulas"]):
            formula = document["formulas"].get(line)
            yield f"{_BYTE_ROWS[line]}: {how}" + (f", {formula}." if formula else ".")


def _absences(ranks: list[Rank]) -> Iterator[str]:
    # One line per part and reason, with the stages it holds for.
    for part, title in (("mtp_stash", "MTP stash"), ("drafter", "Drafter")):
        reasons: dict[str, list[str]] = {}
        for rank in ranks:
            if part in rank["absent"]:
                reasons.setdefault(rank["absent"][part], []).append(str(rank["pp"]))
        for reason, stages in reasons.items():
            where = "" if len(stages) == len(ranks) else f" on stage {', '.join(stages)}"
            yield f"{title} not built{where}: {reason}."


def _verdict(document: dict[str, Any]) -> str:
    limiting = document["limiting_rank"]
    if document["fits"] is None:
        return f"No device memory to judge on {document['hardware']['vendor']}; the largest rank is {limiting}."
    rank: Rank = document["ranks"][limiting]
    length, runtime = document["runtime"]["max_model_len"], document["runtime"]
    if document["fits"]:
        return f"Fits: rank {limiting} has the least left, {gib(rank['free_bytes'])} for requests."
    need, fraction = _needs(rank), f"(memory_fraction={runtime['memory_fraction']})"
    if "engine" in document:  # what it reserves for a request, and what stands beside its fraction, are its own
        reserved = gib(rank["request_bytes"])
        return (
            f"Does not fit: rank {limiting} has {gib(rank['free_bytes'])} left for requests, and one of {length:,} "
            f"tokens takes {reserved} {fraction}."
        )
    return (
        f"Does not fit: rank {limiting} needs {gib(need)} and the cache of one request of {length:,} tokens, "
        f"and has {gib(need + rank['free_bytes'])} {fraction}."
    )
