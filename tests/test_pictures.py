"""Pictures and pages: what is written, what is in it, and what is refused before anything is planned."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import Run

import builder
from builder.planning import pictures
from builder.planning.pictures_sweep import mark_front

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"
VOID = ("meta", "br", "link")


class Page(HTMLParser):
    """The tags of a page, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("task=plan hardware=amd pp=4 spec=mtp report.plot=memory", "memory"),
        ("task=plan hardware=amd pp=4 spec=mtp report.plot=capacity", "capacity"),
        ("task=plan model=tiny hardware=cpu report.plot=memory", "memory"),
        ("task=plan report.plot=capacity", "capacity"),
        ("task=plan pp=8 tp=8 report.plot=memory", "memory"),
        ("task=search model=v4_flash search.gpus=4 report.plot=sweep", "sweep"),
        ("task=search model=v4_flash search.gpus=4 report.plot=memory", "memory"),
        ("-m task=plan model=v4_flash hardware=amd,nvidia pp=1,2 report.plot=sweep", "sweep"),
        ("-m task=plan pp=1,2 report.plot=sweep", "sweep"),
    ],
)
def test_a_picture_is_two_files(run: Run, line: str, name: str) -> None:
    result = run(*line.split(), "out=o")
    assert (result.code in (0, 1), result.err) == (True, "")
    assert {path.name for path in Path("o").iterdir()} >= {f"{name}.png", f"{name}.svg"}
    assert Path(f"o/{name}.png").read_bytes().startswith(PNG)
    assert ET.parse(f"o/{name}.svg").getroot().tag.endswith("svg")


def test_a_picture_is_the_same_every_time() -> None:
    plan = builder.plan(builder.compose(["task=plan", "hardware=amd", "pp=4"]))
    first, second = (pictures.svg_text(pictures.plan_figure("memory", plan)) for _ in range(2))
    assert first == second


def test_the_memory_picture_shows_every_line_against_the_device() -> None:
    plan = builder.plan(builder.compose(["task=plan", "hardware=amd", "pp=4", "spec=mtp"]))
    figure = pictures.plan_figure("memory", plan)
    (axes,), rank = figure.axes, plan.ranks[3]
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches if round(bar.get_x() + bar.get_width() / 2) == 3]
    assert max(tops) * 2**30 == pytest.approx(rank.nbytes + rank.cache.nbytes(rank.longest))
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "mi355x: 288.0 GiB" in words
    assert any(word.startswith("MTP stash, 448.00 MiB") for word in words)
    assert any("(estimate)" in word for word in words)


def test_the_capacity_picture_has_the_figures_of_the_plan() -> None:
    from builder.planning.pictures_plan import requests_at

    plan = builder.plan(builder.compose(["task=plan", "hardware=amd", "pp=4", "dp=2"]))
    least = min(rank.capacity.requests for rank in plan.ranks if rank.capacity)
    assert requests_at(plan, plan.config.runtime.max_model_len) == 2 * least


@pytest.mark.parametrize(
    ("line", "pictures_inside", "words"),
    [
        ("task=plan hardware=amd pp=4", 2, ("Assumptions", "activations", "runtime.memory_fraction=0.9", "limiting")),
        ("task=plan model=tiny hardware=cpu", 1, ("Assumptions",)),
        ("task=search model=v4_flash search.gpus=4", 1, ("The front", "plans looked at", "as configured")),
        ("-m task=plan model=v4_flash pp=1,2,99", 1, ("fits", "refused", "43 layers")),
    ],
)
def test_a_page_is_complete_in_itself(run: Run, line: str, pictures_inside: int, words: tuple[str, ...]) -> None:
    result = run(*line.split(), "report.html=page.html")
    assert (result.code in (0, 1), result.err) == (True, "")
    text = Path("page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.tags.count("svg") == pictures_inside
    assert (page.fetched, len(page.ids)) == ([], len(set(page.ids)))
    assert "<script" not in text
    for word in words:
        assert word in text


def test_where_nothing_fits_the_nearest_is_shown(run: Run) -> None:
    line = ("task=search", "search.devices=[rtx_5090]", "search.gpus=4")
    assert run(*line, "report.html=page.html", "report.plot=memory", "out=o").code == 1
    text = Path("page.html").read_text(encoding="utf-8")
    assert "The nearest" in text
    assert "Nothing fits. The nearest lacks" in text
    assert "<svg" in text
    assert Path("o/memory.png").read_bytes().startswith(PNG)
    # No legal plan at all: there is nothing near.
    assert run(*line, "search.spec=[dspark]", "report.html=none.html").code == 1
    assert Page(Path("none.html").read_text(encoding="utf-8")).open == []


def test_the_memory_picture_tells_engine_lines_apart() -> None:
    from builder.planning.pictures_style import COLOURS, HATCHES

    looks = [(COLOURS[name], HATCHES.get(name)) for name in COLOURS]
    assert len(set(looks)) == len(looks)
    line = ["task=plan", "hardware=amd", "tp=8", "plan.engine=vllm"]
    figure = pictures.plan_figure("memory", builder.plan(builder.compose(line)))
    assert "plan.engine=vllm" in figure.axes[0].get_title(loc="left")


def test_a_front_is_what_no_other_beats() -> None:
    points = [{"group": "a", "devices": n, "tokens": t} for n, t in ((1, 5), (2, 4), (2, 9), (4, 9), (8, 10))]
    marked = mark_front([*points, {"group": "b", "devices": 8, "tokens": 1}])
    assert [(one["devices"], one["tokens"]) for one in marked if one["front"]] == [(1, 5), (2, 9), (8, 10), (8, 1)]


def test_drawing_does_not_touch_the_rows_of_a_sweep(run: Run) -> None:
    line = ("-m", "task=plan", "model=v4_flash", "pp=1,2", "output=json")
    assert run(*line, "report.plot=sweep", "out=o", "report.html=p.html").document == run(*line).document


REFUSALS = [
    ("report.plot=memory", "report.plot=memory: is written to a folder, and there is none; add out=DIR"),
    ("report.plot=pie out=o", "report.plot=pie: is not known; use one of memory, capacity, sweep"),
    (
        "report.plot=sweep out=o",
        "report.plot=sweep: draws a sweep or a search, and this is one plan; use memory or capacity, a sweep (-m), "
        "or task=search",
    ),
    (
        "hardware=cpu model=tiny report.plot=capacity out=o",
        "report.plot=capacity: hardware=cpu has no device memory to judge; name another hardware=, or use "
        "report.plot=memory",
    ),
    ("report.html=.", "report.html=.: is a folder; give a file in a folder that exists"),
    ("report.html=no/x.html", "report.html=no/x.html: its folder does not exist; give a file in a folder that exists"),
    ("-m pp=1,2 report.plot=sweep", "report.plot=sweep: is written to a folder, and there is none; add out=DIR"),
    ("-m pp=1,2 report.plot=pie out=o", "report.plot=pie: is not known; use one of memory, capacity, sweep"),
    (
        "-m pp=1,2 report.plot=memory out=o",
        "report.plot=memory: draws one plan, and this is a sweep; use report.plot=sweep, or leave -m out",
    ),
    (
        "-m report.plot=memory,capacity out=o",
        "report.plot=memory,capacity: belongs to the sweep as a whole; give one value",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_what_cannot_be_drawn(run: Run, line: str, message: str) -> None:
    first, *rest = line.split()
    result = run(*([first, "task=plan", *rest] if first == "-m" else ["task=plan", first, *rest]))
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


def test_without_matplotlib(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name))
    result = run("task=plan", "report.html=x.html")
    message = "needs matplotlib, which is not installed; install it: pip install 'builder[plot]'"
    assert (result.code, result.err) == (2, f"builder: report.html=x.html: {message}\n")
