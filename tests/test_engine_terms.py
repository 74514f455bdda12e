"""What engines add to a rank, and how they count their caches: every term by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import builder
from builder.planning.document import Plan
from builder.planning.engine_terms import (
    ENGINE_COPIES,
    ENGINE_STATE,
    ENGINE_WEIGHTS,
    ENGINE_WORKSPACE,
    MESSAGES,
    TERMS,
)
from builder.planning.engine_terms_pages import in_flight
from builder.planning.rules import ENGINE_NAMES

LINES = (ENGINE_WEIGHTS, ENGINE_COPIES, ENGINE_STATE, ENGINE_WORKSPACE, MESSAGES)


def planned(line: str) -> Plan:
    return builder.plan(builder.compose(["task=plan", *line.split()]))


def test_engine_terms_enter_only_with_the_engine() -> None:
    line = ["task=plan", "model=v4_flash", "hardware=amd", "pp=2"]
    own = builder.plan(builder.compose(line)).to_dict()
    vllm = builder.plan(builder.compose([*line, "plan.engine=vllm"])).to_dict()
    assert not set(own["ranks"][0]["bytes"]) & set(LINES)
    assert vllm["ranks"][1]["bytes"][MESSAGES] == 8192 * 4 * 4096 * 2
    assert vllm["ranks"][1]["exactness"][MESSAGES] == "exact"
    assert "sglang #23661" in vllm["formulas"][MESSAGES]
    assert own["messages"] == {"bytes_per_token": 32_768}


def test_every_page_of_the_memory_document_names_the_engines_terms() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    assert all(f"`{line}`" in text for line in LINES)
    assert set(TERMS) == {"builder", *ENGINE_NAMES}


def test_atom_has_its_state_once() -> None:
    line = ["task=plan", "hardware=amd", "tp=8"]
    own = builder.plan(builder.compose(line)).ranks[0]
    atom = builder.plan(builder.compose([*line, "plan.engine=atom"])).ranks[0]
    assert atom.booked[ENGINE_STATE] == 64 * (own.cache.fixed - atom.cache.fixed) == 64 * 18_710_528


def test_vllm_on_amd_keeps_wo_a_twice() -> None:
    # 61 layers of 16 groups x 1,024 rows x 4,096 columns, over 8 ranks, in bfloat16.
    rank = planned("hardware=amd tp=8 plan.engine=vllm").ranks[0]
    assert rank.booked[ENGINE_COPIES] == 61 * 16 * 1024 * 4096 // 8 * 2
    assert rank.exactness[ENGINE_COPIES] == "exact"
    assert ENGINE_COPIES not in planned("tp=8 plan.engine=vllm").ranks[0].booked
    assert ENGINE_COPIES not in planned("hardware=amd tp=8 plan.engine=vllm runtime.weights=bfloat16").ranks[0].booked


def test_atom_dequantizes_wo_a_while_loading() -> None:
    values = 61 * 16 * 1024 * 4096 // 8
    rank = planned("hardware=amd tp=8 plan.engine=atom").ranks[0]
    assert rank.booked[ENGINE_WEIGHTS] == 2 * values - values - values // (128 * 128)


def test_vllm_keeps_the_shared_expert_whole_where_tokens_are_split_too() -> None:
    fp8 = 3 * (2048 * 4096 + 16 * 32)
    rank = planned("model=v4_flash dp=2 tp=2 ep=4 plan.engine=vllm").ranks[0]
    assert rank.booked[ENGINE_WEIGHTS] == 43 * fp8 // 2
    for axes in ("dp=1 tp=2 ep=2", "dp=4 tp=1 ep=4", "dp=2 tp=2 ep=4 parallel.shared_expert=replicated"):
        assert ENGINE_WEIGHTS not in planned(f"model=v4_flash {axes} plan.engine=vllm").ranks[0].booked


def test_padding_of_experts_on_amd() -> None:
    # V4-Pro at tp=8: 3,072 / 8 = 384 rows become 512, a third more; with whole experts there is nothing to pad.
    rank = planned("hardware=amd tp=8 plan.engine=vllm").ranks[0]
    expert = 3 * (3072 * 7168 // 2 + 3072 * 7168 // 32) // 8
    assert rank.booked[ENGINE_WEIGHTS] == 61 * (384 * expert) // 3
    assert ENGINE_WEIGHTS not in planned("hardware=amd tp=8 ep=8 plan.engine=vllm").ranks[0].booked


def test_the_workspace_of_prefills() -> None:
    rank = planned("hardware.device=h200 tp=8 plan.engine=vllm").ranks[0]
    assert rank.booked[ENGINE_WORKSPACE] == 4 * (131_072 // 4 + 128 + 8192) * 512 * 2
    assert ENGINE_WORKSPACE not in planned("hardware.device=b300 tp=8 plan.engine=vllm").ranks[0].booked


def test_index_scores_of_vllm_are_bounded() -> None:
    line = "tp=8 runtime.max_model_len=1048576"
    bounded, free = (
        planned(f"{line} plan.engine={name}").ranks[0].booked["activations"] for name in ("vllm", "sglang")
    )
    assert free > 8192 * 1_048_576 // 4 * 4 > bounded


@pytest.mark.parametrize("pp", [1, 4])
def test_tokens_in_flight(pp: int) -> None:
    plan = planned(f"hardware.device=h200 pp={pp} tp=8 plan.engine=vllm")
    assert in_flight(plan.config) == (pp + 1) * 8192
    pages = plan.ranks[0].pages
    assert pages is not None
    assert pages.in_flight == (pp + 1) * 8192


def test_a_token_of_sglangs_pools_by_hand() -> None:
    # Pages of 256 tokens: 256 window rows, 64 CSA entries, 2 HCA entries, each padded to a multiple of 576 bytes.
    def row(count: int) -> float:
        return -(-count * 584 // 576) * 576 / count

    window = 61 * row(256) + 30 * 8 / 256 * (2 * 2 * 512 + 2 * 2 * 128) * 4
    token = 30 * (row(64) + 132) / 4 + 31 * row(2) / 128 + 0.1 * window
    rank = planned("hardware.device=h200 tp=8 plan.engine=sglang runtime.memory_fraction=0.95").ranks[0]
    assert rank.pools is not None
    assert rank.pools.per_token == pytest.approx(token)
    rows = -(-((64 + 1) * 128 + 128 + 1) // 128) * 128
    assert rank.pools.fixed == 31 * rows * 2 * 512 * 4
    admission = rank.admission
    assert admission is not None
    loaded = sum(size for line, size in rank.booked.items() if line in ("weights", "buffers", ENGINE_WEIGHTS))
    pool = int(0.95 * 150_754_820_096) - loaded
    assert rank.pool_bytes == pool
    assert admission["tokens"] == int((pool - rank.pools.fixed) / token) // 256 * 256


def test_drafts_double_the_rings_and_add_a_layer() -> None:
    plain, drafting = (
        planned(f"hardware.device=b300 tp=8 plan.engine=sglang spec={spec}").ranks[0].pools for spec in ("none", "mtp")
    )
    assert plain is not None
    assert drafting is not None
    more = 0.1 * 30 * 8 / 256 * (2 * 2 * 512 + 2 * 2 * 128) * 4
    assert drafting.per_token == pytest.approx((plain.per_token + more) * 62 / 61)
    assert drafting.fixed > 1.9 * plain.fixed


PAGED = "model=v4_flash hardware.device=rtx_5090 tp=2 pp=3 plan.engine=vllm"


def test_vllm_admits_in_pages_and_the_plan_says_so() -> None:
    plan = planned(f"{PAGED} runtime.max_model_len=8192")
    longest = min(rank.capacity.longest_request for rank in plan.ranks if rank.capacity)
    rank = plan.ranks[plan.limiting_rank]
    assert rank.pages is not None
    assert rank.free is not None
    assert rank.pages.bytes_needed(8192) > rank.free > rank.cache.nbytes(8192)
    assert (plan.fits, longest) == (False, rank.pages.longest(rank.free, 1_048_576))
    assert rank.pages.bytes_needed(longest) <= rank.free < rank.pages.bytes_needed(longest + 1)
    warned = [one for one in plan.findings if one.severity == "warning" and one.rule == "pages-short"]
    assert f"the longest that is admitted is {longest:,} tokens" in str(warned[0])
    capacity = plan.to_dict()["capacity"]
    assert capacity["physical"]["requests"] == capacity["admission"]["requests"] == 0
    assert planned(f"{PAGED} runtime.max_model_len={longest}").fits is True
    assert planned(f"{PAGED} runtime.max_model_len={longest + 1}").fits is False


def test_what_vllm_refused_is_refused() -> None:
    # vLLM #44376: 6.66 GiB needed, 5.44 available; here 6.35 and 5.41.
    line = "model=v4_flash hardware.device=gh200 tp=2 ep=2 runtime.memory_fraction=.95 runtime.max_model_len=30000"
    assert planned(f"{line} runtime.reserve_bytes=10500000000 plan.engine=vllm").fits is False
    assert planned(f"{line} runtime.reserve_bytes=10500000000").fits is True


def test_the_fraction_of_sglang_holds_weights_and_cache_only() -> None:
    line = "hardware.device=h200 tp=8 runtime.max_model_len=8192 plan.engine=sglang"
    memory = 150_754_820_096
    for fraction in (0.9115, 0.92):
        plan = planned(f"{line} runtime.memory_fraction={fraction}")
        rank = plan.ranks[0]
        assert plan.fits is True
        assert rank.free == rank.pool_bytes == int(fraction * memory) - rank.static_bytes
        assert rank.booked["activations"] <= memory - int(fraction * memory)
    outside = planned(f"{line} runtime.memory_fraction=0.99")
    rank = outside.ranks[0]
    assert rank.free == memory - int(0.99 * memory) - rank.booked["activations"] < 0
    assert outside.to_dict()["capacity"]["admission"] == {"requests": 0, "tokens": 0}
    assert "no room outside the fraction" in str(outside.findings)


def test_the_least_fraction_is_named_and_works() -> None:
    line = "hardware.device=h200 tp=8 runtime.max_model_len=8192 plan.engine=sglang runtime.memory_fraction"
    said = next(one for one in planned(f"{line}=0.88").findings if one.rule == "budget")
    assert "runtime.memory_fraction=0.9026 is the least" in str(said)
    assert (planned(f"{line}=0.9026").fits, planned(f"{line}=0.9025").fits) == (True, False)
    # Where activations leave no room for such a fraction, none is named.
    narrow = planned(f"{line}=0.88 runtime.max_num_batched_tokens=65536")
    assert not [one for one in narrow.findings if "is the least" in str(one)]


@pytest.mark.parametrize("engine", ["builder", "vllm", "sglang", "atom"])
@pytest.mark.parametrize("length", [1, 100, 256, 1000, 8192, 131_072])
def test_no_more_are_let_in_than_are_held(engine: str, length: int) -> None:
    for device in ("hardware=amd", "hardware.device=h200 runtime.memory_fraction=0.92", "hardware.device=h100"):
        if engine == "atom" and device != "hardware=amd":
            continue
        plan = planned(f"{device} tp=8 runtime.max_model_len={length} plan.engine={engine}")
        whole = plan.to_dict()["capacity"]
        assert whole["admission"]["requests"] <= whole["physical"]["requests"]
        assert plan.fits is (whole["longest_request"] >= length)
