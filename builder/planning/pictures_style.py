"""How pictures look: colours that the colour-blind tell apart (Okabe and Ito), one size of paper, quiet axes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

COLOURS = {
    "weights": "#0072B2",
    "drafter": "#E69F00",
    "mtp_stash": "#D55E00",
    "aux_hidden": "#CC79A7",
    "activations": "#56B4E9",
    "cache": "#009E73",
    "buffers": "#F0E442",
    "engine_weights": "#0072B2",
    "engine_copies": "#0072B2",
    "engine_state": "#009E73",
    "engine_workspace": "#56B4E9",
    "messages": "#999999",
    "graphs": "#999999",
    "communication": "#999999",
    "other": "#000000",
}
HATCHES = {
    # What an engine adds has the colour of its kind, hatched.
    "activations": "//",
    "cache": "xx",
    "engine_weights": "\\\\",
    "engine_copies": "..",
    "engine_state": "++",
    "engine_workspace": "oo",
    "graphs": "//",
    "communication": "xx",
}
SERIES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MARKED = ((8, (1, 1.5, 2, 3, 4, 5, 6, 8)), (2_000, (1, 2, 5)))
"""Up to a ratio of largest to smallest, where a decimal axis is marked in each decade; beyond, at the powers of ten."""
INK, FAINT = "#222222", "#D0D0D0"
SETTINGS: dict[str, Any] = {
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "builder",
    "svg.fonttype": "path",
}


def settings() -> Any:
    """A context in which figures are made and written: the same settings whatever the user's own are."""
    matplotlib: Any = importlib.import_module("matplotlib")
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS, "backend": "agg"})


def paper(width: float, height: float, panels: int = 1) -> tuple[Any, Sequence[Any]]:
    """A figure and its axes, side by side. No window, no state of the process."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color=FAINT, linewidth=0.6)
        one.set_axisbelow(True)
    return figure, axes


def only_words(axes: Any, words: str) -> None:
    """Axes with nothing to show say so."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center")


def plain_ticks(axis: Any, values: Sequence[float] = ()) -> None:
    """Numbers as people write them: 128 Ki, 20 M. values: of a decimal axis, which then gets enough ticks for them."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    if values:
        ratio = max(values) / max(1, min(values))
        marked = next((places for most, places in MARKED if ratio <= most), (1,))
        axis.set_major_locator(ticker.LogLocator(base=10, subs=marked))
    axis.set_major_formatter(ticker.FuncFormatter(_decimal if values else _binary))
    axis.set_minor_formatter(ticker.NullFormatter())


def _decimal(value: float, place: int) -> str:
    del place
    return short(value)


def _binary(value: float, place: int) -> str:
    """131072 is 128 Ki."""
    del place
    for unit, power in (("Mi", 20), ("Ki", 10)):
        if value >= 1 << power and value % (1 << power) == 0:
            return f"{int(value) >> power:,} {unit}"
    return short(value)


def short(value: float) -> str:
    """A count with few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value:,.0f}" if value >= 1 else f"{value:.2g}"
