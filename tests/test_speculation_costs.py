"""The table of docs/speculative.md is what the plan says."""

from __future__ import annotations

import re
from pathlib import Path

import builder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "speculative.md"

RELEASES = {
    "Pro": ("model=v4_pro", "pp=4"),
    "Pro-0813": ("model=v4_pro_0813", "pp=4"),
    "Flash": ("model=v4_flash", "pp=2"),
    "Flash-0731": ("model=v4_flash_0731", "pp=2"),
}


def rows() -> list[tuple[str, list[str], list[int]]]:
    """Release, methods and numbers of each row of the table of costs."""
    lines = re.findall(r"^\| ((?:Pro|Flash)\S*) (.*?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        (release, re.findall(r"`(\w+)`", what), [int(cell.replace(",", "")) for cell in cells.split(" | ")])
        for release, what, cells in lines
    ]


def test_the_table_of_costs_is_the_plan_s() -> None:
    seen: set[tuple[str, str]] = set()
    for release, methods, shown in rows():
        for method in methods:
            document = builder.plan(builder.compose([*RELEASES[release], f"spec={method}"])).to_dict()
            last = document["ranks"][-1]
            planned = [last["bytes"][name] for name in ("drafter", "mtp_stash", "aux_hidden")]
            assert [*planned, last["cache"]["bytes_per_request"]] == shown, (release, method)
            seen.add((release, method))
    assert {method for _, method in seen} == {"none", "ngram", "mtp", "eagle", "draft_model", "dspark"}
    assert len(seen) == 12


def test_the_numbers_of_drafts_in_the_table_are_the_defaults() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for release, methods, _ in rows():
        for method in methods:
            drafts = builder.compose([*RELEASES[release], f"spec={method}"]).spec.drafts
            line = next(
                line for line in text.splitlines() if line.startswith(f"| {release} ") and f"`{method}`" in line
            )
            assert not drafts or f"k {drafts})" in line, line
