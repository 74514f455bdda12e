"""However tokens are cut into steps, whatever is rewound and whoever shares the batch: the same logits."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from models import random_ids, random_model, run, small

from builder.assembly.stages import stage_cache
from builder.kernels.reference import entries
from builder.runtime.cache import Cache
from builder.runtime.model import Model

LAYOUTS = ["plain", "fp8", "fp8_fp4"]


def model_with(drafts: int, *overrides: str) -> Model:
    return random_model(small("spec=ngram", f"spec.num_speculative_tokens={drafts}", *overrides))


@pytest.fixture(scope="module")
def exact_model() -> Model:
    return model_with(8, "runtime.dtype=float64", "runtime.weights=float32")


@pytest.fixture(scope="module")
def whole(exact_model: Model) -> torch.Tensor:
    """Logits of a 700-token prompt in one go."""
    ids = random_ids(700, 260)
    return run(exact_model.stage, exact_model.cache(1, 700), [ids], [0])


@pytest.mark.parametrize("seed", range(4))
def test_random_chunks_equal_one_go(exact_model: Model, whole: torch.Tensor, seed: int) -> None:
    chance, ids, cache = random.Random(seed), random_ids(700, 260), exact_model.cache(1, 700)
    found: list[torch.Tensor] = []
    while cache.lengths[0] < 700:
        size = chance.choice([1, 1, 2, 3, 5, 9, 31, 64, 127, 128, 129, 300])
        at = cache.lengths[0]
        found.append(run(exact_model.stage, cache, [ids[at : at + size]], [0]))
    assert (torch.cat(found) - whole).abs().max() < 1e-10


@pytest.mark.parametrize("seed", range(3))
def test_rewinds_at_random_points_are_exact(exact_model: Model, whole: torch.Tensor, seed: int) -> None:
    chance, ids, cache = random.Random(100 + seed), random_ids(700, 260), exact_model.cache(1, 710)
    worst, rewinds = 0.0, 0
    while (at := cache.lengths[0]) < 700:
        right = min(chance.choice([1, 4, 9, 40]), 700 - at)
        wrong = chance.randint(0, 8)
        logits = run(exact_model.stage, cache, [[*ids[at : at + right], *random_ids(wrong, 260, seed=at)]], [0])
        worst = max(worst, float((logits[:right] - whole[at : at + right]).abs().max()))
        cache.rewind(0, wrong)
        rewinds += wrong > 0
    assert worst < 1e-10
    assert rewinds > 30


@pytest.mark.parametrize("boundary", [4, 128, 132, 256])
@pytest.mark.parametrize("back", [1, 3, 8])
def test_a_rewind_across_a_window_boundary_is_exact(
    exact_model: Model, whole: torch.Tensor, boundary: int, back: int
) -> None:
    ids, cache = random_ids(700, 260), exact_model.cache(1, 700)
    start = max(0, boundary - back + 1)
    if start:
        run(exact_model.stage, cache, [ids[:start]], [0])
    run(exact_model.stage, cache, [[5] * back], [0])
    cache.rewind(0, back)
    rest = run(exact_model.stage, cache, [ids[start : start + 60]], [0])
    assert (rest - whole[start : start + 60]).abs().max() < 1e-10


def test_more_than_the_drafts_cannot_be_rewound(exact_model: Model) -> None:
    cache = exact_model.cache(1, 50)
    run(exact_model.stage, cache, [random_ids(20, 260)], [0])
    with pytest.raises(ValueError, match="cannot rewind request 0 by 9 tokens: at most 8"):
        cache.rewind(0, 9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_equal_one_go_in_every_layout(layout: str) -> None:
    model = model_with(2, f"cache={layout}", "runtime.dtype=float64", "runtime.weights=float32")
    ids = random_ids(300, 260, seed=3)
    whole, cache = run(model.stage, model.cache(1, 300), [ids], [0]), model.cache(1, 300)
    cuts = [0, 1, 4, 5, 130, 133, 134, 260, 261, 262, 263, 300]
    parts = [run(model.stage, cache, [ids[a:b]], [0]) for a, b in pairwise(cuts)]
    assert (torch.cat(parts) - whole).abs().max() < 1e-10


def test_each_of_a_ragged_batch_has_the_logits_it_has_alone(exact_model: Model) -> None:
    prompts = [random_ids(count, 260, seed=count) for count in (1, 3, 129, 40, 129)]
    cache = exact_model.cache(5, 140)
    together = run(exact_model.stage, cache, prompts, range(5)).split([len(prompt) for prompt in prompts])
    following = [[7], [8], [9], [10], [11]]
    order = [3, 0, 4, 1, 2]
    after = run(exact_model.stage, cache, [following[slot] for slot in order], order)
    for slot, prompt in enumerate(prompts):
        single = exact_model.cache(1, 140)
        alone = run(exact_model.stage, single, [prompt], [0])
        assert (together[slot] - alone).abs().max() < 1e-10
        step = run(exact_model.stage, single, [following[slot]], [0])
        assert (after[order.index(slot)] - step[0]).abs().max() < 1e-10


def test_a_request_can_be_reset_alone(exact_model: Model) -> None:
    first, second, third = (random_ids(count, 260, seed=count) for count in (60, 45, 133))
    cache = exact_model.cache(2, 200)
    run(exact_model.stage, cache, [first, second], [0, 1])
    cache.reset(0)
    again = run(exact_model.stage, cache, [third], [0])
    assert (again - run(exact_model.stage, exact_model.cache(1, 200), [third], [0])).abs().max() < 1e-10
    assert cache.lengths == [133, 45]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("length", [1, 127, 300])
def test_the_cache_has_exactly_the_planned_bytes(layout: str, dtype: str, length: int) -> None:
    model = model_with(3, f"cache={layout}", f"runtime.dtype={dtype}", "pp=1")
    planned = stage_cache(model.assembly.stages[0], model.assembly.cache_format).nbytes(length)
    assert model.cache(2, length).nbytes == 2 * planned


def test_a_drafter_has_a_ring_of_its_own() -> None:
    plain, drafting = (random_model(small(f"spec={method}")) for method in ("none", "mtp"))
    rows = {name: cache_of(model) for name, model in (("none", plain), ("mtp", drafting))}
    assert rows["mtp"].nbytes > rows["none"].nbytes


def cache_of(model: Model) -> Cache:
    return model.cache(1, 64)


def test_more_tokens_than_the_cache_holds_are_refused(exact_model: Model) -> None:
    with pytest.raises(ValueError, match="request 0: 11 tokens, the cache holds 10"):
        run(exact_model.stage, exact_model.cache(1, 10), [random_ids(11, 260)], [0])


def test_fp4_rounding_takes_the_even_code_on_ties() -> None:
    values = torch.tensor([[0.0, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -6.0, 6.0, 0.1, 2.4, 4.9]])
    codes, _ = entries.fp4_blocks(torch.cat([values, values], dim=-1))
    steps = torch.tensor([0, 0, 1, 2, 2, 4, 4, 6, 6, 8, 10, 15, 7, 0, 4, 6], dtype=torch.uint8)
    assert codes[0, :16].tolist() == steps.tolist()


def test_the_hadamard_transform_is_orthonormal_and_symmetric() -> None:
    matrix = entries.hadamard(torch.eye(128, dtype=torch.float64))
    assert torch.allclose(matrix @ matrix.T, torch.eye(128, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(matrix, matrix.T)


def test_fp8_entries_keep_the_rotary_part_and_round_the_rest_by_blocks_of_64() -> None:
    x = torch.randn(3, 80, generator=torch.Generator().manual_seed(0))
    codec = entries.FP8Entries(80, 16, -(-(64 + 32 + 1) // 8) * 8)
    back = codec.decode(codec.encode(x), torch.float32)
    assert torch.equal(back[:, 64:], x[:, 64:].to(torch.bfloat16).float())
    scale = torch.exp2(torch.ceil(torch.log2(x[:, :64].abs().amax(-1, keepdim=True) / 448)))
    expected = (x[:, :64] / scale).to(torch.float8_e4m3fn).float() * scale
    assert torch.equal(back[:, :64], expected)
