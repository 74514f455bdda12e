"""Greedy tokens with every method are those of the plain model: a part of the matrix, and all of it with ``-m slow``.

The whole matrix takes about an hour of one core: ``python -m pytest -n 0 -m slow tests/test_speculation_lossless.py``.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from speculating import METHODS, SOURCES, prompts_for, settings, speculating
from torch import Tensor

from builder.kernels.reference import indexer, router
from builder.kernels.reference.selection import largest
from builder.runtime.generate import Generation, generate_tokens
from builder.runtime.model import Model
from builder.runtime.step import cached_step

NEAR = 1e-4
"""In float32 a run may go another way where two logits, or the last that is chosen inside and the next, are closer."""

FEW, MANY = 12, 400
"""New tokens of each prompt in the quick part, and in the whole matrix."""

QUICK = [
    ("flash", "ngram", 3),
    ("flash", "mtp", 2),
    ("fp4", "eagle", 1),
    ("fp4", "draft_model", 4),
    ("shipped", "ngram", 5),
    ("shipped", "mtp", 6),
    ("random", "draft_model", 1),
    ("random_narrow", "mtp", 4),
    ("random_narrow", "draft_model", 6),
]
"""Every source with one method and another, every method, and every number of drafts."""


def arguments(dtype: str, requests: int) -> tuple[str, ...]:
    """One request at a time with the compiled kernels, more with the reference."""
    compiled = requests == 1 and any(map(shutil.which, ("g++", "c++", "clang++")))
    kernels = "compiled" if compiled else "reference"
    return (f"runtime.dtype={dtype}", f"kernels={kernels}", f"runtime.max_num_seqs={requests}")


@cache
def plain(source: str, dtype: str, requests: int, count: int) -> Generation:
    """What the target makes of the prompts by itself."""
    model = speculating(source, "none", 0, *arguments(dtype, requests))
    return generate_tokens(model, prompts_for(model), settings(count))


@pytest.mark.parametrize(("source", "method", "drafts"), QUICK)
def test_greedy_tokens_are_those_of_the_plain_model(source: str, method: str, drafts: int) -> None:
    model = speculating(source, method, drafts, *arguments("float64", 4))
    found = generate_tokens(model, prompts_for(model), settings(FEW))
    assert found.token_ids == plain(source, "float64", 4, FEW).token_ids
    if method == "draft_model":
        accepted = found.statistics.to_dict()["accepted_per_position"]
        assert len(accepted) == drafts
        assert 0 < accepted[0] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", SOURCES)
def test_all_greedy_tokens_in_float64(source: str, method: str, requests: int, tell: Callable[[str], None]) -> None:
    expected = plain(source, "float64", requests, MANY).token_ids
    accepted: list[str] = []
    for drafts in range(1, 7):
        model = speculating(source, method, drafts, *arguments("float64", requests))
        taken = share(requests, drafts)
        found = generate_tokens(model, prompts_for(model)[taken], settings(MANY))
        assert found.token_ids == expected[taken], (drafts, first_difference(found.token_ids, expected[taken]))
        accepted.append(f"{found.statistics.accepted_per_step:.2f}")
    tell(f"float64, {source}, {method}, batch {requests}: equal for k 1 to 6; accepted per step {' '.join(accepted)}")


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", SOURCES)
def test_all_greedy_tokens_in_float32(source: str, method: str, requests: int, tell: Callable[[str], None]) -> None:
    expected = plain(source, "float32", requests, MANY).token_ids
    why: Counter[str] = Counter()
    for drafts in range(1, 7):
        model = speculating(source, method, drafts, *arguments("float32", requests))
        taken = share(requests, drafts)
        found = generate_tokens(model, prompts_for(model)[taken], settings(MANY)).token_ids
        why.update(reasons(source, prompts_for(model)[taken], found, expected[taken]))
    tell(f"float32, {source}, {method}, batch {requests}: sequences {dict(why)}")
    assert not why["no reason"]


def test_a_divergence_in_float32_is_excused_only_where_two_are_close() -> None:
    expected = plain("shipped", "float32", 4, FEW).token_ids
    drafted = speculating("shipped", "mtp", 4, *arguments("float32", 4))
    found = generate_tokens(drafted, prompts_for(drafted), settings(FEW)).token_ids
    assert "no reason" not in reasons("shipped", prompts_for(drafted), found, expected)
    wrong = [list(tokens) for tokens in expected]
    wrong[0][0] = (wrong[0][0] + 1) % 256
    assert "no reason" in reasons("shipped", prompts_for(drafted), wrong, expected)


def share(requests: int, drafts: int) -> slice:
    """The prompts of a run: all, or one at a time every other one, so that the matrix takes no hours."""
    return slice(drafts % 2, None, 2) if requests == 1 else slice(None)


def first_difference(found: list[list[int]], expected: list[list[int]]) -> tuple[int, int]:
    """Which sequence differs, and from which token on."""
    return next((at, parting(*pair)) for at, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])


def parting(found: list[int], expected: list[int]) -> int:
    """The first token that two sequences do not have in common."""
    return next(at for at, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])


def reasons(source: str, prompts: list[list[int]], found: list[list[int]], expected: list[list[int]]) -> list[str]:
    """For each sequence: equal, or what was close in the plain run where the two part; else no reason."""
    model = speculating(source, "none", 0, *arguments("float32", 4))
    return [
        "equal" if one == other else reason(model, prompt + other[: parting(one, other)])
        for prompt, one, other in zip(prompts, found, expected, strict=True)
    ]


def reason(model: Model, ids: list[int]) -> str:
    """What is close in a plain pass over ``ids``: the logits after the last, or a choice inside on the way."""
    with torch.inference_mode(), gaps() as inner:
        logits = model.stage(cached_step(model.cache(1, len(ids)), [ids], [0]))[-1]
    first, second = logits.topk(2).values.tolist()
    if first - second < NEAR:
        return "close logits"
    return "a close choice inside" if min(inner) < NEAR else "no reason"


@contextmanager
def gaps() -> Iterator[list[float]]:
    """The smallest gap of every choice of entries and experts: between the last that is chosen and the next."""
    found: list[float] = []

    def watching(scores: Tensor, count: int) -> Tensor:
        if count < scores.shape[-1]:
            ordered = scores.topk(count + 1, dim=-1).values
            gap = (ordered[..., -2] - ordered[..., -1]).nan_to_num(torch.inf, torch.inf)
            found.append(float(gap.min()))
        return largest(scores, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "largest", watching)
        patch.setattr(indexer, "largest", watching)
        yield found


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line although the test succeeds."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    return write
