"""Speculative decoding changes nothing but the number of passes."""

from __future__ import annotations

import pytest
import torch
from models import random_ids, random_model, small

from builder.runtime.acceptance import accept
from builder.runtime.drafting.base import Draft
from builder.runtime.drafting.ngram import NgramDrafter
from builder.runtime.generate import Generation, generate_tokens
from builder.runtime.model import Model
from builder.runtime.sampling import Sampler
from builder.schema.groups import GenerateConfig

EXACT = ("runtime.dtype=float64", "runtime.weights=float32", "runtime.max_num_seqs=4")
METHODS = ["ngram", "mtp", "eagle", "draft_model"]


def settings(count: int, temperature: float = 0.0) -> GenerateConfig:
    return GenerateConfig(max_new_tokens=count, temperature=temperature, top_p=1.0, ignore_eos=True, stream=False)


def speculating(method: str, drafts: int, *more: str) -> Model:
    chosen = [f"spec={method}", f"spec.num_speculative_tokens={drafts}"] if method != "none" else []
    draft = ["model@draft=tiny", "draft.num_hidden_layers=2", "draft.layer_types=[swa,csa]"]
    return random_model(small(*EXACT, *chosen, *(draft if method == "draft_model" else []), *more), seed=1)


def share_target_weights(model: Model, plain: Model) -> None:
    """Random weights are drawn in order of names: copy the target's, so that both are one model."""
    wanted = dict(plain.stage.named_parameters()) | dict(plain.stage.named_buffers())
    with torch.no_grad():
        for name, tensor in (*model.stage.named_parameters(), *model.stage.named_buffers()):
            if name in wanted:
                tensor.copy_(wanted[name])


@pytest.fixture(scope="module")
def plain() -> Model:
    return speculating("none", 0)


PROMPTS = [random_ids(count, 260, seed=count) for count in (3, 4, 5, 127, 128, 129)]


@pytest.fixture(scope="module")
def expected(plain: Model) -> Generation:
    return generate_tokens(plain, PROMPTS, settings(40))


@pytest.mark.parametrize("drafts", [1, 2, 4, 6])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_tokens_are_those_of_the_plain_model(
    plain: Model, expected: Generation, method: str, drafts: int
) -> None:
    model = speculating(method, drafts)
    share_target_weights(model, plain)
    found = generate_tokens(model, PROMPTS, settings(40))
    assert found.token_ids == expected.token_ids


def test_a_drafter_that_knows_the_target_is_believed_all_the_time(plain: Model) -> None:
    model = random_model(small(*EXACT, "spec=draft_model", "model@draft=tiny", "spec.num_speculative_tokens=3"))
    weights = {name: tensor for name, tensor in model.stage.named_parameters() if not name.startswith("draft.")}
    tables = {name: tensor for name, tensor in model.stage.named_buffers() if not name.startswith("draft.")}
    with torch.no_grad():
        for name, tensor in (*model.stage.named_parameters(), *model.stage.named_buffers()):
            if name.startswith("draft."):
                tensor.copy_((weights | tables)[name.removeprefix("draft.")])
    found = generate_tokens(model, [PROMPTS[3]], settings(41))
    assert found.statistics.accepted_per_step == pytest.approx(3, abs=0.1)
    assert found.steps <= 12
    assert found.statistics.to_dict()["accepted_per_position"] == [1.0, 1.0, 1.0]


def test_prompts_in_pieces_are_followed_by_the_drafter(plain: Model, expected: Generation) -> None:
    model = speculating("mtp", 2, "runtime.max_num_batched_tokens=50")
    share_target_weights(model, plain)
    assert generate_tokens(model, PROMPTS, settings(40)).token_ids == expected.token_ids


def test_sampled_tokens_follow_the_target_whatever_the_draft_says() -> None:
    torch.manual_seed(0)
    target, other = torch.randn(3, 8), torch.randn(8)
    sampler = Sampler(1.0, 1.0, 7)
    p, q = sampler.distribution(target[0]), sampler.distribution(other)
    counts, accepted, draws = torch.zeros(8, dtype=torch.float64), 0, 20_000
    for _ in range(draws):
        draft = sampler.draw(q)
        found = accept(Draft((draft,), (q,)), target[:2], sampler)
        counts[found[0]] += 1
        accepted += len(found) == 2
    chi_square = float(((counts - p * draws) ** 2 / (p * draws)).sum())
    assert chi_square < 24.3  # 99.9 percent of seven degrees of freedom
    assert accepted / draws == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.011)


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_sampled_sequences_have_the_same_distribution(method: str) -> None:
    counts: dict[str, torch.Tensor] = {}
    for chosen in ("none", method):
        model = speculating(chosen, 2, "model.vocab_size=12", "model.bos_token_id=0", "model.eos_token_id=1")
        if chosen == "none":
            base = model
        share_target_weights(model, base)
        seen = torch.zeros(12, dtype=torch.float64)
        prompts = [[3, 4, 5, 3, 4]] * 400
        runs = generate_tokens(model, prompts, settings(3, temperature=1.0), seed=1000)
        for tokens in runs.token_ids:
            seen[tokens[2]] += 1
        counts[chosen] = seen
    a, b = counts["none"], counts[method]
    statistic = float(((a - b) ** 2 / (a + b).clamp(min=1)).sum())
    assert statistic < 31.3  # 99.9 percent of eleven degrees of freedom


def test_look_up_takes_the_longest_match_and_the_latest() -> None:
    drafter = NgramDrafter(1, 3)
    assert drafter.look_up([1, 2, 3, 9, 1, 2, 3, 8, 5, 1, 2, 3], 2) == [8, 5]
    assert drafter.look_up([7, 3, 4, 3], 5) == [4, 3]
    assert drafter.look_up([1, 2, 3], 4) == []


def test_the_stash_keeps_its_address_and_its_place(plain: Model) -> None:
    model = speculating("mtp", 2)
    address = dict(model.stage.named_buffers())["mtp_stash.rows"].data_ptr()
    generate_tokens(model, [PROMPTS[0]], settings(30))
    assert dict(model.stage.named_buffers())["mtp_stash.rows"].data_ptr() == address


def test_drafts_that_found_no_room_in_a_step_are_made_again(plain: Model) -> None:
    model = speculating("draft_model", 3, "runtime.max_num_batched_tokens=3")
    share_target_weights(model, plain)
    prompts = [[1], [2]]
    assert (
        generate_tokens(model, prompts, settings(30)).token_ids
        == generate_tokens(plain, prompts, settings(30)).token_ids
    )
