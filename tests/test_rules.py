"""Every reported case that is about configuration: what the planner says of it, word for word where it matters."""
# ruff: noqa: E501  a case is a line

from __future__ import annotations

from pathlib import Path

import pytest

import builder
from builder.assembly.stages import assemble
from builder.errors import ConfigError
from builder.planning.engine_terms import ENGINE_STATE, ENGINE_WEIGHTS, MESSAGES, TERMS
from builder.planning.rules import ENGINE_NAMES, NOTE, REFUSAL, WARNING, findings
from builder.planning.rules_engines import ENGINE_RULES
from builder.planning.rules_general import GENERAL_RULES

ONE_KV_HEAD = "does not divide the cache: there is one KV head, every tp rank holds it whole"

NOTED = [
    # case, configuration, words of the note, source named in it
    ("C01", "model=v4_flash_0731 hardware.device=a100_80gb pp=3 spec=dspark", "the drafter lives on the last stage only", "vLLM #52761"),
    ("C01", "model=v4_flash_0731 hardware.device=a100_80gb pp=3 spec=dspark", "a100_80gb is sm_80", "vLLM #40851"),
    ("C04", "model=v4_flash pp=43 tp=2", "stage 0 has 1 of the 3 layers that route by token id", "vLLM PR #55520"),
    ("C04", "pp=2 tp=4", "deep_gemm_mega_moe reads the token ids on every stage", "vLLM PR #55520"),
    ("C05", "model=v4_flash pp=4", "the stages hold 11,11,11,10 layers", "Megatron-Bridge PR #4131"),
    ("C06", "pp=31", "NeMo falls back to scores without a word", "Megatron-Bridge PR #4131"),
    ("C09", "pp=2 tp=8", "a stage sends 57,344 bytes per token to the next", "sglang PR #23661"),
    ("C09", "model=v4_flash pp=2 tp=8", "a stage sends 32,768 bytes per token to the next", "sglang PR #23661"),
    ("C15", "hardware.device=h100 pp=2 tp=8 ep=8 runtime.max_model_len=1048576", "8,192 tokens x 1,048,576 / 4 entries x 4 bytes = 8,589,934,592 bytes; 512 tokens", "vLLM #45663"),
    ("C20", "pp=8 parallel.partition=[7,7,7,7,7,7,7,12]", "stage 7 of [7, 7, 7, 7, 7, 7, 7, 12] needs", "TensorRT-LLM #3827"),
    ("C21", "hardware=amd pp=4", "DeepSeek-V4 has no stage split in this engine", "ATOM PR #1552"),
    ("C24", "hardware.device=h20 tp=16 parallel.shared_expert=replicated", "SGLANG_SHARED_EXPERT_TP1=1", "sglang #23602"),
    ("C30", "tp=8", "reported to answer garbage", "vLLM #47528"),
    ("C31", "hardware=amd dp=8 ep=8", "ep=8 with data-parallel attention scored 0.0000", "InferenceX PR #1266"),
    ("C33", "hardware=amd tp=8", ONE_KV_HEAD, "tp=8"),
    ("C35", "hardware.device=h200 tp=8", "loads 125.65 GiB a GPU on H200 (Marlin)", "InferenceX #2128"),
    ("C36", "hardware.device=h200 dp=8 ep=8 runtime.max_model_len=800000", "the published 800,000 did not start", "vLLM recipes #381"),
    ("C37", "hardware.device=h200 dp=8 ep=8 runtime.memory_fraction=0.922", "an engine's next version may load more", "InferenceX PR #1461"),
    ("C38", "hardware=amd hardware.device=mi300x tp=8", "--moe-backend aiter is refused on gfx942", "InferenceX PR #2194"),
    ("C38", "hardware=amd hardware.device=mi300x tp=8 runtime.max_num_seqs=128", "fewer than max_num_seqs=128", "InferenceX PR #2194"),
    ("C41", "hardware=amd tp=2 spec=mtp", "no memory is left for the cache: budget", "InferenceX PR #2345"),
    ("C45", "hardware.device=rtx_pro_6000 tp=8", "divide a replica among at least 10 devices", "InferenceX PR #2345"),
    ("C51", "model=v4_flash hardware.device=h20 tp=2", "one figure per token misleads", "vLLM #51041"),
    ("C58", "hardware=amd tp=8 runtime.max_num_batched_tokens=32768", "max_num_batched_tokens=32,768 takes an estimated", "InferenceX PR #2590"),
    ("C59", "hardware=amd tp=8 runtime.max_num_batched_tokens=32768", "start-up profile of an engine may not see all of it", "local-inference-lab/vllm PR #679"),
    ("C61", "hardware=amd tp=8 runtime.max_num_seqs=1024", "17.84 MiB a slot: 19,159,580,672 bytes", "ATOM PR #1164"),
    ("C63", "tp=8", "bytes fixed +", "TensorRT-LLM PR #14698"),
    ("C66", "model=v4_flash_0731 spec=dspark spec.num_speculative_tokens=7", "is more than dspark_block_size=5", "vLLM PR #41834"),
    ("C67", "model=v4_flash_0731 spec=dspark spec.num_speculative_tokens=3", "it works, and passes here", "vLLM #50012"),
    ("C69", "spec=mtp tp=8", "the method is called EAGLE for DeepSeek-V4", "InferenceX PR #2305"),
    ("C74", "spec=mtp spec.num_speculative_tokens=3", "64 requests with 3 drafts are 64 x 4 = 256 tokens", "InferenceX B200 and B300 scripts"),
    ("C75", "spec=mtp spec.num_speculative_tokens=5", "MTP gains little beyond 3 drafts", "InferenceX golden acceptance files"),
    ("C89", "cache=plain tp=8", "the kernels take an FP8 cache only", "vLLM PR #41834"),
    ("C90", "tp=8", "mega-MoE needs expert parallel and FP4 experts", "recipes 689d6b9"),
    ("C90", "model=v4_flash hardware.device=rtx_pro_6000 tp=8 cache=fp8_fp4", "the FP4 indexer cache aborts on sm_120", "recipes 689d6b9"),
    ("C91", "model=v4_flash hardware.device=a100_80gb tp=4", "the FP8 e4m3 kernels need sm_89 or later", "ktransformers #1978"),
    ("C92", "pp=2 parallel.partition=[40,21]", "the largest of [31, 30]", "llama.cpp PR #24162"),
    ("4.4", "hardware=amd hardware.device=mi300x tp=8", "V4-Pro on MI300X as unsupported", "InferenceX PR #2194"),
    ("4.6", "hardware=xpu pp=16", "supported in source, without a published recipe", "vLLM models/deepseek_v4/xpu"),
    ("unified", "model=v4_flash hardware.device=dgx_spark tp=2", "shares its memory with the processor", "unsloth PR #10283"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "line", "words", "source"), NOTED)
def test_a_case_is_a_note(case: str, line: str, words: str, source: str) -> None:
    notes = builder.plan(builder.compose(["task=plan", *line.split()])).to_dict()["notes"]
    assert any(words in note and source in note for note in notes), (case, notes)


ENGINE_REFUSED = [
    ("C01", "vllm", "model=v4_flash_0731 pp=3 spec=dspark", "pp=3: pp=3 with spec=dspark: the drafter lives on the last stage only"),
    ("C04", "vllm", "model=v4_flash pp=43", "give stage 0 at least 3 layers"),
    ("C05", "sglang", "pp=2 parallel.partition=[2,59]", "parallel.partition=[2, 59]: stage 0 has 2 of the 3 layers"),
    ("C21", "atom", "hardware=amd pp=4", "pp=4: DeepSeek-V4 has no stage split in this engine"),
    ("4.4", "atom", "model=v4_flash hardware=amd hardware.device=mi300x tp=8", "use model=v4_flash_base"),
    ("C89", "vllm", "cache=plain tp=8", "cache=plain: the kernels take an FP8 cache only"),
    ("C90", "vllm", "model=v4_flash hardware.device=rtx_pro_6000 tp=8 cache=fp8_fp4", "cache=fp8_fp4: the FP4 indexer cache aborts"),
    ("C91", "vllm", "model=v4_flash hardware.device=a100_80gb tp=4", "hardware.device=a100_80gb: the FP8 e4m3 kernels need sm_89"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "engine", "line", "words"), ENGINE_REFUSED)
def test_an_engine_refuses_only_where_it_is_named(case: str, engine: str, line: str, words: str) -> None:
    builder.plan(builder.compose(["task=plan", *line.split()]))
    with pytest.raises(ConfigError) as refused:
        builder.plan(builder.compose(["task=plan", *line.split(), f"plan.engine={engine}"]))
    assert words in str(refused.value), case
    assert any("#" in str(one) or "recipe" in str(one) for one in refused.value.problems)


REFUSED = [
    ("C23", "tp=16", "3072 / 16 = 192 is no multiple of 128, one block of scales; use tp=8 or parallel.shared_expert"),
    ("C27", "model=v4_flash dp=3 ep=3", "2 redundant experts would make 258 = 3 x 86"),
    ("C65", "model=v4_flash_0731 spec=mtp", "is a DSpark release: its mtp.* tensors are DSpark stages"),
    ("C80", "spec=dspark", "v4_pro holds no DSpark stages"),
    ("0.1", "model=v4_flash tp=16", "o_groups=8 does not divide by 16; use tp=8"),
]


@pytest.mark.parametrize(("case", "line", "words"), REFUSED)
def test_arithmetic_refuses_for_everyone(case: str, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        builder.compose(["task=plan", *line.split()])
    assert words in str(refused.value), case


ENGINE_NOTED = [
    ("C17", "vllm", "model=v4_flash hardware.device=h20 tp=2", "pages of 1,002,240 bytes"),
    ("C55", "vllm", "model=v4_flash hardware.device=gh200 tp=2 ep=2", "the longest that"),
    ("C60", "vllm", "tp=8", "captured graphs are not counted"),
    ("C61", "atom", "hardware=amd tp=8", "allocated at start, 17.84 MiB a slot"),
]


@pytest.mark.parametrize(("case", "engine", "line", "words"), ENGINE_NOTED)
def test_a_named_engine_says_more(case: str, engine: str, line: str, words: str) -> None:
    found = builder.plan(builder.compose(["task=plan", *line.split(), f"plan.engine={engine}"])).findings
    assert any(words in str(one) for one in found), case
    assert all(not one.engines or one.engines == (engine,) for one in found)


def test_findings_serve_without_ranks_and_for_another_engine() -> None:
    config = builder.compose(["task=plan", "model=v4_flash", "pp=2", "spec=mtp"])
    found = findings(config, assemble(config), "vllm")
    assert found[0].severity == REFUSAL
    assert found[0].rule == "pp-drafter"
    assert {one.severity for one in findings(config, assemble(config))} <= {NOTE, WARNING}


def test_rules_have_names_of_their_own_and_sources() -> None:
    rules = (*GENERAL_RULES, *ENGINE_RULES)
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.source for rule in rules)
    assert all(rule.engines and set(rule.engines) <= set(ENGINE_NAMES) for rule in ENGINE_RULES)
    assert all(not rule.engines and rule.severity != REFUSAL for rule in GENERAL_RULES)


def test_engine_terms_enter_only_with_the_engine() -> None:
    line = ["task=plan", "model=v4_flash", "hardware=amd", "pp=2"]
    own = builder.plan(builder.compose(line)).to_dict()
    vllm = builder.plan(builder.compose([*line, "plan.engine=vllm"])).to_dict()
    assert not set(own["ranks"][0]["bytes"]) & {ENGINE_WEIGHTS, ENGINE_STATE, MESSAGES}
    assert vllm["ranks"][1]["bytes"][MESSAGES] == 8192 * 4 * 4096 * 2
    assert vllm["ranks"][1]["exactness"][MESSAGES] == "exact"
    assert "sglang #23661" in vllm["formulas"][MESSAGES]
    assert own["messages"] == {"bytes_per_token": 32_768}


def test_every_page_of_the_memory_document_names_the_engines_terms() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    assert all(f"`{line}`" in text for line in (ENGINE_WEIGHTS, ENGINE_STATE, MESSAGES))
    assert set(TERMS) == {"builder", *ENGINE_NAMES}


def test_atom_has_its_state_once() -> None:
    line = ["task=plan", "hardware=amd", "tp=8"]
    own = builder.plan(builder.compose(line)).ranks[0]
    atom = builder.plan(builder.compose([*line, "plan.engine=atom"])).ranks[0]
    assert atom.booked[ENGINE_STATE] == 64 * (own.cache.fixed - atom.cache.fixed) == 64 * 18_710_528
