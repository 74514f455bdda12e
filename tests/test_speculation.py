"""Drafters, and what could go wrong around them; losslessness and sampling have files of their own."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st
from models import random_ids
from safetensors.torch import load_file
from speculating import METHODS, settings, speculating
from torch import Tensor

import builder
from builder.runtime import generate
from builder.runtime.drafting.base import Computed, Draft, Drafter
from builder.runtime.drafting.choice import drafter_of
from builder.runtime.drafting.mtp import MTPDrafting
from builder.runtime.drafting.ngram import NgramDrafter
from builder.runtime.generate import generate_tokens
from builder.runtime.model import Model, open_model
from builder.runtime.request import Request
from builder.runtime.sampling import Sampler

CHECKPOINTS = Path(__file__).parent / "data" / "checkpoints"
TINY = "random_narrow"
PROMPTS = [[7], random_ids(9, 260, 3), random_ids(30, 260, 4), [5, 5, 5, 5, 5], random_ids(2, 260, 9)]


@pytest.fixture(scope="module")
def plain() -> Model:
    return speculating(TINY, "none", 0)


@pytest.fixture(scope="module")
def expected(plain: Model) -> list[list[int]]:
    return generate_tokens(plain, PROMPTS, settings(9)).token_ids


def test_a_drafter_that_knows_the_target_is_believed_all_the_time() -> None:
    model = speculating(TINY, "draft_model", 3)
    tensors = dict(model.stage.named_parameters()) | dict(model.stage.named_buffers())
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name.startswith("draft."):
                tensor.copy_(tensors[name.removeprefix("draft.")])
    found = generate_tokens(model, [PROMPTS[2]], settings(41))
    statistics = found.statistics.to_dict()
    assert statistics["accepted_per_position"] == [1.0, 1.0, 1.0]
    assert statistics["mean_acceptance_length"] == 4.0
    assert statistics["tokens_per_target_step"] == 4.0
    assert found.steps == 1 + 40 // 4


@pytest.mark.parametrize(
    ("method", "budget"), [("ngram", 3), ("mtp", 1), ("mtp", 3), ("eagle", 8), ("draft_model", 2), ("draft_model", 8)]
)
def test_steps_of_a_few_tokens_and_few_places(method: str, budget: int, expected: list[list[int]]) -> None:
    model = speculating(TINY, method, 6, f"runtime.max_num_batched_tokens={budget}", "runtime.max_num_seqs=2")
    found = generate_tokens(model, PROMPTS, settings(9))
    assert found.token_ids == expected
    assert found.steps >= sum(map(len, PROMPTS)) / budget


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_more_drafts_than_there_is_room_for(method: str, count: int, expected: list[list[int]]) -> None:
    found = generate_tokens(speculating(TINY, method, 50), PROMPTS, settings(count))
    assert found.token_ids == [tokens[:count] for tokens in expected]
    assert all(at < count - 1 for at in found.statistics.drafted)


def test_it_stops_at_the_end_token_inside_drafts_that_stand(plain: Model) -> None:
    model, prompts, to_the_end = speculating(TINY, "draft_model", 6), [PROMPTS[2], PROMPTS[3]], settings(12)
    to_the_end.ignore_eos = False
    free = generate_tokens(plain, prompts, settings(12)).token_ids
    for stop in free[0][:7]:
        model.config.model.eos_token_id = stop
        expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in free]
        assert generate_tokens(model, prompts, to_the_end).token_ids == expected


@pytest.mark.parametrize("method", ["ngram", "mtp"])
@pytest.mark.parametrize(("temperature", "top_p"), [(5e-324, 0.5), (1e-9, 1.0), (1e5, 1e-9), (1.0, 1e-300)])
def test_hardly_any_temperature_or_top_p_is_greedy(
    method: str, temperature: float, top_p: float, expected: list[list[int]]
) -> None:
    found = generate_tokens(speculating(TINY, method, 2), PROMPTS, settings(9, temperature, top_p))
    assert found.token_ids == expected


def test_any_temperature_gives_tokens() -> None:
    found = generate_tokens(speculating(TINY, "mtp", 2), PROMPTS, settings(9, 1e300))
    assert [len(tokens) for tokens in found.token_ids] == [9] * len(PROMPTS)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_of_a_finished_request_is_kept(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Drafter] = []

    def keeping(model: Any, cache: Any) -> Drafter:
        kept.append(drafter_of(model, cache))
        return kept[-1]

    monkeypatch.setattr(generate, "drafter_of", keeping)
    model = speculating(TINY, method, 2, "runtime.max_num_seqs=2")
    generate_tokens(model, PROMPTS * 3, settings(4))
    gc.collect()
    assert kept
    assert not [one for one in gc.get_objects() if type(one) is Request]
    held = [value for value in vars(kept[0]).values() if isinstance(value, dict)]
    assert all(len(one) <= 2 for one in held)


@given(st.lists(st.sampled_from([0, 1, 256, 65536]), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 5))
def test_look_up_takes_the_longest_match_and_the_latest(sequence: list[int], shortest: int, most: int) -> None:
    drafter = NgramDrafter(shortest, 3)
    found = next(
        (
            sequence[start + size : start + size + most]
            for size in range(min(3, len(sequence) - 1), shortest - 1, -1)
            for start in range(len(sequence) - size - 1, -1, -1)
            if sequence[start : start + size] == sequence[len(sequence) - size :]
        ),
        [],
    )
    assert drafter.look_up(sequence, most) == found


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize(("name", "length"), [("tiny-flash", 150), ("tiny-fp4", 140)])
def test_the_drafter_s_logits_along_the_way_are_the_official_ones(
    name: str, length: int, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real generation whose target says the known tokens; among its drafts are right and wrong ones."""
    tensors = load_file(CHECKPOINTS / name / "expected.safetensors")
    known = tensors["input_ids"].tolist()
    official = torch.cat((tensors["mtp_prefill_logits"], tensors["mtp_decode_logits"]), dim=1)
    count = len(known[0]) - length
    compared: dict[tuple[int, int], float] = {}
    propose, observe, given_out = MTPDrafting.propose, MTPDrafting.observe, dict.fromkeys(range(len(known)), 0)

    def half_right(self: MTPDrafting, requests: Any, room: Any) -> list[Draft]:
        mixed: list[Draft] = []
        for one, draft in zip(requests, propose(self, requests, room), strict=True):
            right = known[one.number][len(one.sequence) :][: len(draft.tokens) // 2]
            mixed.append(Draft((*right, *draft.tokens[len(right) :])))
        return mixed

    def comparing(self: MTPDrafting, computed: list[Computed], stream: Tensor) -> None:
        observe(self, computed, stream)
        for one in computed:
            at, number = one.start + one.rows - 1, one.request.number
            logits = self._followed[one.request.slot][1]
            compared[number, at] = float((logits - official[number, at]).abs().max())

    def saying_the_known(draft: Draft, logits: Tensor, sampler: Sampler) -> list[int]:
        number = sampler.seed
        says = known[number][length + given_out[number] :][: len(draft.tokens) + 1]
        right = next((at for at, token in enumerate(draft.tokens) if token != says[at]), len(draft.tokens))
        given_out[number] += right + 1
        return says[: right + 1]

    monkeypatch.setattr(MTPDrafting, "propose", half_right)
    monkeypatch.setattr(MTPDrafting, "observe", comparing)
    monkeypatch.setattr(generate, "accept", saying_the_known)
    lines = ["task=generate", f"checkpoint={CHECKPOINTS / name}", "hardware=cpu", "spec=mtp"]
    more = [f"spec.num_speculative_tokens={drafts}", "runtime.max_num_batched_tokens=37"]
    found = generate_tokens(
        open_model(builder.compose([*lines, *more])), [ids[:length] for ids in known], settings(count)
    )
    assert found.token_ids == [ids[length:] for ids in known]
    assert max(compared.values()) < 2e-5
    assert sum(at < length for _, at in compared) >= 8
    assert sum(at >= length for _, at in compared) >= 6
    if drafts > 1:
        assert 0 < found.statistics.accepted_per_step < drafts


def test_most_first_drafts_for_text_that_training_did_not_see_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import speculation as benchmark  # pyright: ignore[reportMissingImports]

    try:
        prompts = benchmark.held_out_prompts(8)
        contenders = [benchmark.contender("reference", method, drafts) for method, drafts in (("none", 0), ("mtp", 1))]
        plain, drafted = (generate_tokens(one.model, prompts, settings(48)) for one in contenders)
    finally:
        for name in ("speculation", "train_tiny"):
            sys.modules.pop(name, None)
    (accepted,) = drafted.statistics.to_dict()["accepted_per_position"]
    assert accepted > 0.5
    assert drafted.statistics.target_steps < plain.statistics.target_steps / 1.5
    assert drafted.statistics.new_tokens == plain.statistics.new_tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["spec=mtp", "spec.num_speculative_tokens=0"], "spec.num_speculative_tokens=0: "),
        (["spec=ngram", "spec.num_speculative_tokens=-1"], "spec.num_speculative_tokens=-1: "),
        (["spec=mtp", "spec.num_speculative_tokens=1025"], "spec.num_speculative_tokens=1025: "),
        (["spec=ngram", "spec.min_ngram=4"], "spec.min_ngram=4: more than spec.max_ngram=3; use 1 to 3"),
        (
            ["spec=draft_model", "model@draft=v4_flash"],
            "model@draft=v4_flash: its vocabulary of 129280 is not the target's 260",
        ),
        (["spec=mtp", "spec.stash=false"], "spec.stash=false: spec=mtp drafts from the stashed stream; leave it true"),
        (
            ["model=v4_pro_0813", "spec=dspark"],
            "spec=dspark: its forward pass is not public in enough detail to be computed",
        ),
        (["model=v4_flash_0731", "spec=mtp"], "spec=mtp: v4_flash_0731 is a DSpark release"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, arguments: list[str], message: str) -> None:
    chosen = arguments if any(one.startswith("model=") for one in arguments) else ["model=tiny", *arguments]
    result = run("task=generate", *chosen, "hardware=cpu", "prompt_ids=[1,2]")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
