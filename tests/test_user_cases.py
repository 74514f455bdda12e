"""Every reported case that is about configuration: what the planner says of it, word for word where it matters."""
# ruff: noqa: E501  a case is a line

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.engines.importing import import_command
from builder.errors import ConfigError

TESTS = Path(__file__).parent

CASES = (
    "C01", "C04", "C05", "C06", "C07", "C08", "C09", "C15", "C17", "C20", "C21", "C23",
    "C24", "C27", "C30", "C31", "C33", "C35", "C36", "C37", "C38", "C41", "C43", "C45",
    "C51", "C54", "C55", "C57", "C58", "C59", "C60", "C61", "C63", "C65", "C66", "C67",
    "C69", "C71", "C74", "C75", "C77", "C80", "C84", "C85", "C86", "C87", "C89", "C90",
    "C91", "C92",
)  # fmt: skip
"""The cases of the collection of reports that the planner answers to."""

ELSEWHERE = {
    # Cases that are figures, or faults of a loader or of a forward pass, with the test of ours that has them.
    "C07": "test_assembly.py::test_the_ranks_together_hold_the_official_files_once",
    "C08": "test_assembly.py::test_built_modules_have_exactly_the_planned_bytes",
    "C43": "test_fidelity.py::test_a_published_figure_is_met_or_its_miss_explained",
    "C57": "test_fidelity.py::test_a_published_figure_is_met_or_its_miss_explained",
    "C71": "test_checkpoint_reading.py::test_every_declared_name_is_in_the_table_once",
    "C84": "test_checkpoint_reading.py::test_weights_are_dequantized_once",
    "C86": "test_checkpoint_faults.py::test_what_is_said_of_a_fault",
    "C87": "test_checkpoint_reading.py::test_names_match_as_a_whole_or_not_at_all",
}

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
    ("C15", "hardware.device=h100 pp=2 tp=8 ep=8 runtime.max_model_len=1048576", "8,192 tokens x 1,048,576 / 4 entries x 4 bytes = 8,589,934,592 bytes; 0.33.0 computes them 512 MiB at a time", "vLLM #45663"),
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
    ("C45", "hardware.device=rtx_pro_6000 tp=8", "divide a replica among at least 10 devices (11 do: pp=11 tp=1)", "InferenceX PR #2345"),
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
    ("C54", "hardware.device=h200 dp=8 ep=8 runtime.memory_fraction=0.922", "one correction took 1.50 GiB more for the same setting", "vllm-ascend #14678"),
    ("C77", "spec=mtp spec.num_speculative_tokens=3", "such runs say nothing of answers (0.0000 on SWE-bench)", "InferenceX throughput scripts"),
    ("C80", "model=v4_flash hardware.device=h20 tp=8", "experts are packed FP4: I8 [2048, 2048] with E8M0 scales [2048, 128] stand for 2048 x 4096", "vLLM #40790"),
    ("T06", "tp=8", "bytes fixed +", "vLLM #51041"),
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
    ("C27", "vllm", "model=v4_flash tp=4 dp=3 ep=4", "256 experts do not divide by 12 (n_physical_experts=256 must be divisible by ep_size=12)"),
    ("C89", "vllm", "cache=plain tp=8", "cache=plain: the kernels take an FP8 cache only"),
    ("C90", "vllm", "model=v4_flash hardware.device=rtx_pro_6000 tp=8 cache=fp8_fp4", "cache=fp8_fp4: the FP4 indexer cache aborts"),
    ("C21", "atom", "tp=8", "hardware=nvidia: its kernels are AMD's"),
    ("C33", "vllm", "model=v4_flash dp=3", "the routed experts' moe_intermediate_size=2048 does not divide by 3 (vLLM 0.33.0, fused_moe/config.py); use dp=2 or dp=4"),
    ("C33", "vllm", "model=v4_pro_base tp=8 dp=8", "3072 / 64 = 48 is no multiple of 128, one block of scales (vLLM 0.33.0, fused_moe/config.py); use dp=3 or ep=64"),
    ("C91", "vllm", "model=v4_flash hardware.device=a100_80gb tp=4", "hardware.device=a100_80gb: the FP8 e4m3 kernels need sm_89"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "engine", "line", "words"), ENGINE_REFUSED)
def test_an_engine_refuses_only_where_it_is_named(case: str, engine: str, line: str, words: str) -> None:
    builder.plan(builder.compose(["task=plan", *line.split()]))
    with pytest.raises(ConfigError) as refused:
        builder.plan(builder.compose(["task=plan", *line.split(), f"plan.engine={engine}"]))
    assert words in str(refused.value), case
    assert any(word in str(one) for one in refused.value.problems for word in ("#", "recipe", "0.33.0"))


REFUSED = [
    ("C23", "tp=16", "3072 / 16 = 192 is no multiple of 128, one block of scales; use tp=8 or parallel.shared_expert"),
    ("C27", "model=v4_flash dp=3 ep=3", "2 redundant experts would make 258 = 3 x 86"),
    ("C27", "model=v4_flash dp=3 ep=3 plan.engine=vllm", "with tp=1 use dp=2 ep=2 or dp=4 ep=4: vLLM's expert group is all dp·tp ranks"),
    ("0.1", "model=v4_flash tp=1000", "the routed experts' moe_intermediate_size=2048 does not divide by 1000"),
    ("0.1", "model=v4_flash tp=1000", "the shared expert's moe_intermediate_size=2048 does not divide by 1000"),
    ("C65", "model=v4_flash_0731 spec=mtp", "is a DSpark release: its mtp.* tensors are DSpark stages"),
    ("C65", "spec=dspark", "v4_pro holds no DSpark stages"),
    ("0.1", "model=v4_flash tp=16", "o_groups=8 does not divide by 16; use tp=8"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "line", "words"), REFUSED)
def test_arithmetic_refuses_for_everyone(case: str, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        builder.compose(["task=plan", *line.split()])
    assert words in str(refused.value), case


ENGINE_NOTED = [
    ("C33", "vllm", "hardware=amd tp=4 dp=2", "every expert is cut over all dp·tp = 8 ranks"),
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


IMPORTED = [
    ("C31", "sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8 --dp 8 --enable-dp-attention", "data-parallel attention without ep"),
    ("C33", "vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 4 -dp 2", "without --enable-expert-parallel vLLM cuts every expert over all dp·tp = 8 ranks"),
    ("C27", "vllm serve deepseek-ai/DeepSeek-V4-Flash --data-parallel-size 3", "ep=3 is refused, and the line with it: 256 experts do not divide by dp·tp = 3; vLLM needs redundant experts, or --data-parallel-size 2 or --data-parallel-size 4"),
    ("C57", "vllm serve deepseek-ai/DeepSeek-V4-Flash --kv-cache-dtype nvfp4_ds_mla", "--kv-cache-dtype nvfp4_ds_mla has no layout in builder"),
    ("C69", "sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --speculative-algorithm NEXTN --speculative-num-steps 1", "SGLang needs EAGLE for V4"),
    ("C69", """vllm serve deepseek-ai/DeepSeek-V4-Pro --speculative-config '{"method":"mtp","num_speculative_tokens":1,"use_local_argmax_reduction":true}'""", "fails at the start with a DeepSeek-V4 draft (vLLM #57568)"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "command", "words"), IMPORTED)
def test_a_command_of_a_case_is_read_with_a_warning(case: str, command: str, words: str) -> None:
    assert any(words in warning for warning in import_command(command).warnings), case


def test_a_mixed_checkpoint_is_refused_by_its_config(tmp_path: Path, flash_config: dict[str, Any]) -> None:
    # C85: NVFP4 experts, FP8 attention, MXFP4 in the MTP block.
    flash_config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (tmp_path / "config.json").write_text(json.dumps(flash_config))
    with pytest.raises(ConfigError) as refused:
        builder.compose(["task=plan", "model=custom", f"model.config={tmp_path / 'config.json'}"])
    words = 'quantization_config.quant_method="modelopt": is no storage of the official releases'
    assert words in str(refused.value)
    assert "TensorRT-LLM #16196" in str(refused.value)


def test_a_budget_below_zero_is_a_no_with_its_terms() -> None:
    # C41: the answer is no, and the note has every term of the sum.
    plan = builder.plan(builder.compose(["task=plan", "hardware=amd", "tp=2", "spec=mtp"]))
    note = next(str(one) for one in plan.findings if one.rule == "budget")
    rank = plan.ranks[plan.limiting_rank]
    assert plan.fits is False
    assert all(f"{name} {size:,}" in note for name, size in rank.booked.items() if size)
    assert f"= {rank.free:,} bytes" in note


def test_every_case_has_its_row_or_its_test() -> None:
    rows: list[tuple[str, ...]] = [*NOTED, *ENGINE_REFUSED, *REFUSED, *ENGINE_NOTED, *IMPORTED]
    named = {row[0] for row in rows} | set(ELSEWHERE) | {"C85"}
    assert not set(CASES) - named
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), place
