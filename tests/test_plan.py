"""The plan's numbers against figures worked out by hand or published."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builder
from builder.assembly.measure import CacheCost
from builder.planning.capacity import longest_within
from builder.planning.table import gib


def document(*overrides: str) -> dict[str, Any]:
    return builder.plan(builder.compose(["task=plan", *overrides])).to_dict()


def test_the_example_by_hand() -> None:
    found = document("model=v4_flash", "tp=2", "pp=2", "spec=mtp", "cache=fp8")
    assert found["parallel"]["partition"] == [22, 21]
    for rank in found["ranks"][:2]:
        assert rank["bytes"]["weights"] == 40_175_661_200
        assert rank["cache"] == {"bytes_per_request": 7_862_832, "bytes_per_token": 1835.625}
    for rank in found["ranks"][2:]:
        assert rank["bytes"]["weights"] == 38_397_018_316
        assert rank["bytes"]["drafter"] == 2_349_124_076
        assert rank["bytes"]["mtp_stash"] == 268_435_456
        assert rank["cache"] == {"bytes_per_request": 7_954_992, "bytes_per_token": 2014.625}


@pytest.mark.parametrize(
    ("model", "parameters", "activated"),
    [("v4_flash", 284_332_240_471, 13_270_101_591), ("v4_pro", 1_572_997_201_763, 48_852_402_019)],
)
def test_parameters_are_the_published_ones(model: str, parameters: int, activated: int) -> None:
    found = document(f"model={model}", "spec=mtp")["model"]
    assert (found["parameters"], found["activated_parameters"]) == (parameters, activated)


def test_a_drafter_adds_its_parameters_to_its_rank() -> None:
    found = document("model=v4_flash", "spec=mtp")
    assert found["ranks"][0]["parameters"] == 290_942_289_362


@pytest.mark.parametrize(("model", "slope", "whole"), [("v4_pro", 9.62, 9.64), ("v4_flash", 6.72, 6.74)])
def test_the_bf16_cache_of_a_million_tokens_is_the_published_one(model: str, slope: float, whole: float) -> None:
    # vLLM's figure for V4-Pro, 9.62 GiB; 6.72 GiB for Flash follows from it
    cache = document(f"model={model}", "cache=plain")["ranks"][0]["cache"]
    growing = cache["bytes_per_token"] * 2**20
    assert round(growing / 2**30, 2) == slope
    assert round((growing + cache["bytes_per_request"]) / 2**30, 2) == whole


def test_the_command_of_the_readme_fits() -> None:
    found = document("hardware=amd", "spec=none", "pp=4")
    assert found["fits"] is True
    assert found["parallel"]["partition"] == [15, 16, 15, 15]


def test_cpu_judges_nothing() -> None:
    found = document("hardware=cpu", "pp=2")
    assert found["hardware"]["memory_bytes"] is None
    assert found["fits"] is None
    assert found["cache"]["layout"] == "plain"
    assert found["runtime"]["dtype"] == "float32"
    for rank in found["ranks"]:
        assert (rank["fits"], rank["free_bytes"], rank["capacity"]) == (None, None, None)
    sizes = [sum(r["bytes"].values()) + r["cache"]["bytes_per_request"] for r in found["ranks"]]
    assert found["limiting_rank"] == sizes.index(max(sizes))


def test_what_does_not_fit_says_so_with_negative_room() -> None:
    found = document("hardware.device=h100")
    rank = found["ranks"][0]
    assert (found["fits"], rank["fits"]) == (False, False)
    assert rank["free_bytes"] < 0
    assert rank["capacity"] == {"longest_request": 0, "tokens": 0, "requests": 0}


def test_budget_and_capacity_follow_the_definition() -> None:
    chosen = ["hardware=amd", "pp=4", "runtime.memory_fraction=0.8", "runtime.reserve_bytes=123456789"]
    for rank in document(*chosen)["ranks"]:
        budget = math.floor(0.8 * 309_220_868_096) - 123_456_789
        assert rank["free_bytes"] == budget - sum(rank["bytes"].values())

        def cache(tokens: int, rank: dict[str, Any] = rank) -> int:
            counts = rank["components"]
            entries = tokens // 4 * counts["csa"] * (584 + 132) + tokens // 128 * counts["hca"] * 584
            return rank["cache"]["bytes_per_request"] + entries

        capacity, free = rank["capacity"], rank["free_bytes"]
        assert capacity["requests"] == free // cache(131_072)
        assert capacity["longest_request"] == 1_048_576
        each = capacity["tokens"] // 64
        assert cache(each) * 64 <= free
        assert each == 1_048_576 or cache(each + 1) * 64 > free


@settings(max_examples=200)
@given(st.integers(0, 500), st.dictionaries(st.integers(1, 9), st.integers(1, 50)), st.integers(-9, 2000))
def test_the_longest_request_is_the_largest_that_fits(fixed: int, slopes: dict[int, int], free: int) -> None:
    cost = CacheCost(fixed, tuple(slopes.items()))
    fitting = [n for n in range(301) if cost.nbytes(n) <= free]
    assert longest_within(cost, free, 300) == (max(fitting) if fitting else 0)


def test_float64_doubles_what_is_float32_elsewhere() -> None:
    single = document("model=tiny", "hardware=cpu", "runtime.dtype=float32")["ranks"][0]
    double = document("model=tiny", "hardware=cpu", "runtime.dtype=float64")["ranks"][0]
    assert double["cache"]["bytes_per_request"] == 2 * single["cache"]["bytes_per_request"]
    assert double["bytes"]["buffers"] == 2 * single["bytes"]["buffers"]
    assert double["bytes"]["weights"] == single["bytes"]["weights"]


def test_ranks_are_numbered_pp_then_dp_then_tp() -> None:
    found = document("model=v4_flash", "pp=2", "dp=2", "tp=2")["ranks"]
    assert [(rank["rank"], rank["pp"], rank["dp"], rank["tp"]) for rank in found] == [
        (((pp * 2) + dp) * 2 + tp, pp, dp, tp) for pp in range(2) for dp in range(2) for tp in range(2)
    ]


def test_the_draft_model_is_counted_on_the_last_stage() -> None:
    found = document("spec=draft_model", "pp=2")
    first, last = found["ranks"]
    assert found["draft_checkpoint"] == {"tensors": 67_612, "bytes": 156_015_698_140}
    assert (first["components"]["draft_model"], last["components"]["draft_model"]) == (0, 1)
    assert last["bytes"]["drafter"] == 156_015_698_140
    assert last["components"]["hc_head"] == last["components"]["lm_head"] == 1
    assert any("spec.stash=false saves 469,762,048 bytes" in note for note in found["notes"])


def test_dspark_holds_averages_and_no_stash() -> None:
    found = document("model=v4_pro_0813", "spec=dspark", "pp=2")
    last = found["ranks"][-1]
    assert last["bytes"]["aux_hidden"] == 8192 * 3 * 7168 * 2
    assert last["bytes"]["mtp_stash"] == 0
    assert last["components"]["dspark_drafter"] == last["components"]["aux_hidden_tap"] == 1
    assert found["spec"] == {"method": "dspark", "num_speculative_tokens": 5}


def test_one_kv_head_is_said_with_tp() -> None:
    assert any("one KV head" in note for note in document("model=v4_flash", "tp=2")["notes"])


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.50 KiB"), (-(2**30), "-1.00 GiB"), (None, "-")],
)
def test_sizes_for_people(size: int | None, text: str) -> None:
    assert gib(size) == text


def test_given_lines_are_counted_and_marked() -> None:
    given = {"graphs": 3 << 30, "communication": 1 << 30, "other": 5}
    keys = {"graphs": "graph_bytes", "communication": "communication_bytes", "other": "other_bytes"}
    chosen = [f"runtime.{key}={given[line]}" for line, key in keys.items()]
    plain, found = document("tp=8")["ranks"][0], document("tp=8", *chosen)["ranks"][0]
    assert {line: found["bytes"][line] for line in given} == given
    assert {found["exactness"][line] for line in given} == {"given"}
    assert plain["free_bytes"] - found["free_bytes"] == sum(given.values())


def test_the_whole_holds_what_its_least_rank_holds_times_dp() -> None:
    found = document("hardware=amd", "pp=2", "dp=2", "tp=2")
    ranks, whole = found["ranks"], found["capacity"]
    assert whole["replicas"] == 2
    assert whole["longest_request"] == min(rank["capacity"]["longest_request"] for rank in ranks)
    assert whole["physical"]["tokens"] == 2 * min(rank["capacity"]["tokens"] for rank in ranks)
    assert whole["admission"]["requests"] == 2 * min(rank["capacity"]["requests"] for rank in ranks)
    assert whole["admission"]["tokens"] == whole["admission"]["requests"] * 131_072
    assert document("hardware=cpu", "pp=2")["capacity"] is None


def test_loading_peaks_above_what_stays() -> None:
    rank = document("model=v4_flash", "tp=2", "spec=mtp")["ranks"][0]
    held = sum(rank["bytes"][line] for line in ("weights", "drafter", "mtp_stash", "aux_hidden", "buffers"))
    assert rank["load_peak_bytes"] == held + 129_280 * 4096 * 2  # the output head, whole


def test_a_message_is_four_hidden_states() -> None:
    assert document("pp=2")["messages"] == {"bytes_per_token": 57_344}
    assert document("tp=2")["messages"] == {"bytes_per_token": 0}


def test_activations_take_the_chunks_that_the_kernels_take() -> None:
    from builder.kernels.reference import attention, indexer
    from builder.planning import activations

    assert attention.CHUNK == indexer.CHUNK == activations.CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_the_measured_peak(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    import activations as benchmark  # pyright: ignore[reportMissingImports]

    try:
        for case in benchmark.CASES:
            measured, estimated = benchmark.compare(case, benchmark.MID, dtype)
            assert abs(estimated / measured - 1) < 0.15, case
    finally:
        sys.modules.pop("activations", None)
