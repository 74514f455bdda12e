"""A configuration as a command of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.engines.command import ENTRY_BLOCK, REPOSITORIES, Command, architecture, given_bytes, packed_fp4
from builder.errors import Problem
from builder.schema.config import BuildConfig
from builder.schema.spec import EagleSpecConfig, NgramSpecConfig

PARTITION = "VLLM_PP_LAYER_PARTITION"
INDEXER = "indexer_kv_dtype"
_BLACKWELL = ("sm_100", "sm_103")


def refusals(config: BuildConfig) -> Iterator[Problem]:
    """What vLLM itself would stop at, beside the rules of ``planning.rules``."""
    if config.runtime.dtype == "float64":
        yield Problem("runtime.dtype", "float64", "vLLM has no such dtype", "use bfloat16 or float32")
    if (
        isinstance(config.spec, EagleSpecConfig)
        and config.spec.own_checkpoint is None
        and config.spec.method == "eagle"
    ):
        yield Problem(
            "spec",
            "eagle",
            "vLLM's eagle needs a head with files of its own",
            "use spec=mtp for the release's own block, or give spec.checkpoint=DIR",
        )


def write(config: BuildConfig, model: str, partition: tuple[int, ...]) -> Command:
    """The command that equals ``config``."""
    command = Command("vllm", ["vllm", "serve", model])
    command.put("trust-remote-code")
    _parallel(command, config, partition)
    _memory(command, config)
    _hardware(command, config)
    for flag in ("tokenizer-mode", "tool-call-parser", "reasoning-parser"):
        command.put(flag, "deepseek_v4")
    command.put("enable-auto-tool-choice")
    _speculation(command, config)
    return command


def _parallel(command: Command, config: BuildConfig, partition: tuple[int, ...]) -> None:
    parallel = config.parallel
    pp, tp, ep, dp = parallel.pp, parallel.tp, parallel.ep, parallel.dp
    command.put("tensor-parallel-size", tp)
    if pp > 1:
        command.put("pipeline-parallel-size", pp)
        command.environment[PARTITION] = ",".join(map(str, partition))
        command.notes.append(f"{PARTITION} must reach every worker; without it vLLM cuts the layers its own way")
        command.warnings.append("no published vLLM recipe for DeepSeek-V4 uses pipeline stages (vLLM recipes)")
    if dp > 1:
        command.put("data-parallel-size", dp)
    if ep > 1:
        command.put("enable-expert-parallel")
    if parallel.shared_expert == "replicated":
        command.warnings.append(
            "parallel.shared_expert=replicated has no flag: vLLM shards the shared expert and pads it where it does "
            "not divide (vLLM issue 40955)"
        )


def _memory(command: Command, config: BuildConfig) -> None:
    runtime, layout = config.runtime, config.cache.layout
    command.put("kv-cache-dtype", "bfloat16" if layout == "plain" else "fp8")
    command.put("block-size", ENTRY_BLOCK)
    if layout == "fp8_fp4":
        command.put("attention-config", {INDEXER: "mxfp4"})
    elif layout == "fp8" and architecture(config) == "gfx950":
        command.put("attention-config", {INDEXER: "fp8"})
        command.notes.append(f"{INDEXER} is given because vLLM's own choice on gfx950 with aiter is mxfp4")
    command.put("max-model-len", runtime.max_model_len)
    command.put("max-num-seqs", runtime.max_num_seqs)
    command.put("max-num-batched-tokens", runtime.max_num_batched_tokens)
    command.put("gpu-memory-utilization", runtime.memory_fraction)
    if runtime.dtype == "float32":
        command.put("dtype", "float32")
    words, size = given_bytes(config, "reserve_bytes", "graph_bytes", "communication_bytes", "other_bytes")
    if size and config.hardware.total_bytes:
        fraction = runtime.memory_fraction - size / config.hardware.total_bytes
        what = f"{words} have no flags, {size} bytes in all" if "," in words else f"{words} has no flag"
        command.warnings.append(f"{what}: --gpu-memory-utilization {fraction:.4f} leaves the same budget")
    if runtime.weights != "native":
        command.warnings.append(f"runtime.weights={runtime.weights} has no flag: vLLM keeps the weights as stored")


def _hardware(command: Command, config: BuildConfig) -> None:
    arch, vendor = architecture(config), config.hardware.vendor
    flash = config.model.num_hidden_layers < 50
    match vendor:
        case "amd":
            _amd(command, config, arch, flash=flash)
        case "xpu":
            command.warnings.append("Intel XPU: vLLM has the model's code, no recipe is published (vLLM 0.33.0 source)")
        case "cpu":
            command.warnings.append("cpu: no vLLM recipe for DeepSeek-V4 is published (vLLM recipes)")
        case _:
            _nvidia(command, config, arch)


def _amd(command: Command, config: BuildConfig, arch: str, *, flash: bool) -> None:
    command.environment["VLLM_ROCM_USE_AITER"] = "1"
    command.put("distributed-executor-backend", "mp")
    if arch == "gfx942":
        command.environment["VLLM_ROCM_USE_AITER_MOE"] = "1"
        command.put("quantization", "deepseek_v4_fp8")
        _compile(command, {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"})
        if not flash:
            command.warnings.append(
                f"{config.hardware.device}: listed as unsupported for V4-Pro (vLLM recipes), although InferenceX runs "
                "it with tp=8 (InferenceX pull request 2194)"
            )
        elif config.parallel.tp > 1:
            command.warnings.append(f"{config.hardware.device}: tp of 2 and more did not validate (vLLM recipes)")
    else:
        _compile(command, {"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY"})


def _nvidia(command: Command, config: BuildConfig, arch: str) -> None:
    parallel = config.parallel
    if arch == "sm_90":
        command.put("no-enable-flashinfer-autotune")
        _compile(command, {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
    elif arch in _BLACKWELL:
        _compile(command, {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]})
        if parallel.ep > 1 and parallel.pp == 1 and packed_fp4(config.model):
            command.put("moe-backend", "deep_gemm_mega_moe")
        elif parallel.ep == 1:
            command.put("no-enable-flashinfer-autotune")
    elif not arch:
        command.notes.append("a custom device: no flags of a recipe were added")


def _compile(command: Command, value: dict[str, Any]) -> None:
    command.put("compilation-config", value)


def _speculation(command: Command, config: BuildConfig) -> None:
    spec, model, runtime = config.spec, config.model, config.runtime
    if spec.method == "none":
        return
    value: dict[str, Any] = {"method": spec.method, "num_speculative_tokens": spec.drafts}
    if isinstance(spec, NgramSpecConfig):
        value |= {"prompt_lookup_max": spec.max_ngram, "prompt_lookup_min": spec.min_ngram}
    elif isinstance(spec, EagleSpecConfig):
        value["model"] = spec.own_checkpoint or _draft_name(config)
    command.put("speculative-config", value)
    if spec.method == "draft_model":
        command.warnings.append("spec=draft_model: no published vLLM recipe drafts DeepSeek-V4 with another model")
    if not spec.wants_stash and spec.method in ("dspark", "draft_model"):
        size = runtime.max_num_batched_tokens * model.hc_mult * model.hidden_size * 2
        command.warnings.append(
            f"vLLM allocates the MTP buffer on the last stage all the same, {size:,} bytes that nobody reads "
            "(vLLM pull request 50312)"
        )


def _draft_name(config: BuildConfig) -> str:
    name = config.draft.name if config.draft else ""
    return REPOSITORIES.get(name, name)
