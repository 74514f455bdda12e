"""With sampling, speculation leaves the distribution of the tokens as it is, and accepts as often as it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from models import random_model, share_target_weights, small
from speculating import settings
from torch import Tensor

from builder.runtime.acceptance import accept
from builder.runtime.drafting.base import Draft
from builder.runtime.generate import generate_tokens
from builder.runtime.model import Model
from builder.runtime.sampling import Sampler
from builder.runtime.step import cached_step

DRAWS = 20_000
VOCABULARY = 8

WAYS = [(1.0, 1.0), (0.6, 1.0), (1.0, 0.8), (1.7, 0.9)]
"""Temperature and top_p."""


def limit(degrees: int) -> float:
    """What chi-square of so many degrees of freedom exceeds once in a thousand times (Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.0902 * (2 / (9 * degrees)) ** 0.5) ** 3


def chi_square(counts: Tensor, chances: Tensor) -> tuple[float, int]:
    """Pearson's statistic of counts against chances, both [contexts, outcomes], and its degrees of freedom."""
    assert float(counts[chances == 0].sum()) == 0
    expected = chances * counts.sum(-1, keepdim=True)
    possible = chances > 0
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    return statistic, int(possible.sum() - (counts.sum(-1) > 0).sum())


@dataclass
class Chain:
    """Tokens that depend on the token before alone: the target's and the draft's chances are [token, token]."""

    target: Tensor
    draft: Tensor | None
    logits: Tensor
    sampler: Sampler

    def drafted(self, token: int, drafts: int) -> Draft:
        """``drafts`` tokens after ``token``: drawn from the draft's chances, or certain where there are none."""
        tokens, chances = [token], list[Tensor]()
        for _ in range(drafts):
            if self.draft is None:
                tokens.append((tokens[-1] * 3 + 1) % VOCABULARY)
            else:
                chances.append(self.draft[tokens[-1]])
                tokens.append(self.sampler.draw(chances[-1]))
        return Draft(tuple(tokens[1:]), tuple(chances) or None)


def chain(temperature: float, top_p: float, drawn: bool, seed: int) -> Chain:
    random = torch.Generator().manual_seed(seed)
    logits, other = (torch.randn(VOCABULARY, VOCABULARY, generator=random) * 1.5 for _ in range(2))
    sampler = Sampler(temperature, top_p, seed)
    draft = sampler.distribution((logits + other) / 2) if drawn else None
    return Chain(sampler.distribution(logits), draft, logits, sampler)


Accept = Callable[[Draft, Tensor, Sampler], list[int]]


def speculate(one: Chain, drafts: int, accepting: Accept, draws: int) -> tuple[Tensor, list[float], list[float]]:
    """``draws`` tokens: how often each followed each, and for each place how often a draft stood and should have."""
    counts = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    stood, overlap = [0.0] * drafts, [0.0] * drafts
    token, made = 0, 0
    while made < draws:
        draft = one.drafted(token, drafts)
        before = [token, *draft.tokens]
        found = accepting(draft, one.logits[before], one.sampler)
        for place in range(min(len(found), drafts)):
            p = one.target[before[place]]
            q = one.draft[before[place]] if one.draft is not None else torch.eye(VOCABULARY)[draft.tokens[place]]
            overlap[place] += float(torch.minimum(p, q).sum())
            stood[place] += place < len(found) - 1
        for following in found:
            counts[token, following] += 1
            token = following
        made += len(found)
    return counts, stood, overlap


@pytest.mark.parametrize(("temperature", "top_p", "drawn"), [(1.0, 1.0, True), (0.6, 0.8, True), (1.7, 0.9, False)])
def test_every_token_has_the_target_s_chances_and_drafts_stand_as_often_as_they_can(
    temperature: float, top_p: float, drawn: bool
) -> None:
    one = chain(temperature, top_p, drawn, seed=3)
    counts, stood, overlap = speculate(one, 2, accept, DRAWS)
    statistic, degrees = chi_square(counts, one.target)
    assert degrees > 10
    assert statistic < limit(degrees)
    for place in range(2):
        # Three and a half deviations of a sum of so many coins.
        assert stood[place] == pytest.approx(overlap[place], abs=3.5 * max(overlap[place], 1) ** 0.5)


def leftover_is_the_target(draft: Draft, logits: Tensor, sampler: Sampler) -> list[int]:
    """A mistake: what replaces a refused draft is drawn from the target's own chances."""
    wanted = sampler.distribution(logits)
    for index, token in enumerate(draft.tokens):
        q = 1.0 if draft.chances is None else float(draft.chances[index][token])
        if sampler.uniform() * q >= float(wanted[index][token]):
            return [*draft.tokens[:index], sampler.draw(wanted[index])]
    return [*draft.tokens, sampler.draw(wanted[-1])]


def drafts_are_certain(draft: Draft, logits: Tensor, sampler: Sampler) -> list[int]:
    """A mistake: a drawn draft is taken for a certain one."""
    return accept(Draft(draft.tokens), logits, sampler)


def likely_drafts_stand(draft: Draft, logits: Tensor, sampler: Sampler) -> list[int]:
    """A mistake: a draft stands whenever the target gives it more than a tenth."""
    wanted = sampler.distribution(logits)
    for index, token in enumerate(draft.tokens):
        if float(wanted[index][token]) < 0.1:
            return [*draft.tokens[:index], sampler.draw(wanted[index])]
    return [*draft.tokens, sampler.draw(wanted[-1])]


@pytest.mark.parametrize("wrong", [leftover_is_the_target, drafts_are_certain, likely_drafts_stand])
def test_the_chi_square_sees_a_wrong_acceptance(wrong: Accept) -> None:
    one = chain(1.0, 1.0, drawn=True, seed=3)
    counts, stood, overlap = speculate(one, 2, wrong, DRAWS // 4)
    statistic, degrees = chi_square(counts, one.target)
    right_rate = abs(stood[0] - overlap[0]) < 3.5 * overlap[0] ** 0.5
    assert statistic > 2 * limit(degrees) or not right_rate
    if wrong is not drafts_are_certain:
        assert statistic > 2 * limit(degrees)


PROMPT = [3, 4, 5, 3, 4]


def small_vocabulary(method: str, *more: str) -> Model:
    chosen = [f"spec={method}", *(["spec.num_speculative_tokens=2"] if method != "none" else [])]
    sizes = [
        f"vocab_size={VOCABULARY}",
        "bos_token_id=0",
        "eos_token_id=1",
        "num_hidden_layers=2",
        "layer_types=[swa,csa]",
    ]
    chosen += ["model@draft=tiny", *(f"draft.{size}" for size in sizes)] if method == "draft_model" else []
    return random_model(
        small(
            "runtime.max_num_seqs=64",
            "runtime.max_num_batched_tokens=512",
            *chosen,
            *(f"model.{size}" for size in sizes),
            *more,
        ),
        seed=2,
    )


def exact_chances(model: Model, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Of the first two new tokens together, [pairs], and of the third, [vocabulary]: every continuation computed."""
    pairs = [list(pair) for pair in product(range(VOCABULARY), repeat=2)]
    cache = model.cache(len(pairs), 16)
    with torch.inference_mode():
        logits = model.stage(cached_step(cache, [[*PROMPT, *pair] for pair in pairs], range(len(pairs))))
    chances = sampler.distribution(logits).unflatten(0, (len(pairs), -1))
    numbers = torch.arange(len(pairs))
    firsts, seconds = torch.tensor(pairs).unbind(1)
    both = chances[numbers, len(PROMPT) - 1, firsts] * chances[numbers, len(PROMPT), seconds]
    return both, both @ chances[:, len(PROMPT) + 1]


def check_generated(method: str, temperature: float, top_p: float, count: int) -> None:
    plain = small_vocabulary("none")
    model = small_vocabulary(method)
    share_target_weights(model, plain)
    both, third = exact_chances(plain, Sampler(temperature, top_p, 0))
    found = generate_tokens(model, [PROMPT] * count, settings(4, temperature, top_p), seed=1000)
    tokens = torch.tensor(found.token_ids)
    pairs = torch.bincount(tokens[:, 0] * VOCABULARY + tokens[:, 1], minlength=len(both)).double()
    thirds = torch.bincount(tokens[:, 2], minlength=VOCABULARY).double()
    for counts, chances in ((pairs, both), (thirds, third)):
        statistic, degrees = chi_square(counts.unsqueeze(0), chances.unsqueeze(0))
        assert statistic < limit(degrees)
    assert (found.statistics.accepted_per_step > 0) == (method != "none")


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_generated_tokens_have_the_chances_of_the_plain_model(method: str) -> None:
    check_generated(method, 0.8, 0.9, 800)


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "top_p"), WAYS)
@pytest.mark.parametrize("method", ["none", "ngram", "mtp", "eagle", "draft_model"])
def test_many_generated_tokens_have_the_chances_of_the_plain_model(
    method: str, temperature: float, top_p: float
) -> None:
    check_generated(method, temperature, top_p, DRAWS)
