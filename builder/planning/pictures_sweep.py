"""A sweep or a search in one picture: tokens held over devices, the front marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builder.planning.pictures_style import FAINT, INK, MARKERS, SERIES, only_words, paper, plain_ticks, settings

Point = Mapping[str, Any]
MOST_LABELS = 8
LINES = ("-", "--", ":", "-.")


def front(points: Sequence[Point], title: str) -> Any:
    """Every plan that fits as a dot; those that no other beats larger, joined by a line, with their axes."""
    # What fits may still hold nothing in max_num_seqs equal requests, and nothing has no place on these axes.
    points = [point for point in points if point["tokens"] > 0]
    with settings():
        figure, (axes,) = paper(9.0, 5.2)
        if not points:
            only_words(axes, "nothing fits")
            return figure
        groups = list(dict.fromkeys(str(point["group"]) for point in points))
        for at, group in enumerate(groups):
            own = [point for point in points if str(point["group"]) == group]
            _group(axes, group, own, at, label=len(groups) == 1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=10)
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        counts = sorted({int(point["devices"]) for point in points})
        axes.set_xticks([n for n in counts if n & (n - 1) == 0] or counts)
        plain_ticks(axes.xaxis)
        plain_ticks(axes.yaxis, [point["tokens"] for point in points])
        axes.margins(x=0.08, y=0.12)
        axes.set_xlabel("devices")
        axes.set_ylabel("tokens held at once")
        axes.set_title(f"{title}: {len(points):,} plans that fit, and the front", loc="left")
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def _group(axes: Any, group: str, points: Sequence[Point], at: int, *, label: bool) -> None:
    # Where two groups lie on each other, the earlier one shows around and between.
    colour, marker = SERIES[at % len(SERIES)], MARKERS[at % len(MARKERS)]
    rest = [point for point in points if not point["front"]]
    best = sorted((point for point in points if point["front"]), key=lambda point: (point["devices"], point["tokens"]))
    style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none"}
    axes.plot(*_places(rest), markersize=3.5, alpha=0.35, markeredgewidth=0, **style)
    style["linestyle"] = LINES[at % len(LINES)]
    axes.plot(
        *_places(best),
        markersize=max(7, 11 - 2 * at),
        linewidth=1.4,
        zorder=3,
        markeredgecolor="white",
        label=group,
        **style,
    )
    if label:
        _labels(axes, best)


def _places(points: Sequence[Point]) -> tuple[list[int], list[int]]:
    return [point["devices"] for point in points], [point["tokens"] for point in points]


def _labels(axes: Any, best: Sequence[Point]) -> None:
    # The best of each device count; with many counts only every second one, or fewer.
    tops = list({point["devices"]: point for point in best}.values())
    step = -(-len(tops) // MOST_LABELS)
    middle = (tops[0]["devices"] * tops[-1]["devices"]) ** 0.5 if tops else 0
    for point in tops[::-1][:: max(1, step)]:
        where = (point["devices"], point["tokens"])
        # Above and before the line on the right, below and after it on the left: within the axes either way.
        left = {"xytext": (9, -11), "ha": "left"}
        side = {"xytext": (-8, 7), "ha": "right"} if point["devices"] > middle else left
        axes.annotate(point["label"], where, textcoords="offset points", fontsize=8, color=INK, **side)


def mark_front(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The points, each with ``front``: no other of its group has no more devices and no fewer tokens."""

    def order(point: Point) -> tuple[str, int, int]:
        return str(point["group"]), point["devices"], -point["tokens"]

    marked: list[dict[str, Any]] = []
    for point in sorted(points, key=order):
        own = [one for one in marked if one["group"] == point["group"] and one["front"]]
        marked.append({**point, "front": all(one["tokens"] < point["tokens"] for one in own)})
    return marked
