"""A configuration as a command of SGLang."""

from __future__ import annotations

from collections.abc import Iterator

from builder.engines.command import ENTRY_BLOCK, Command, architecture, given_bytes, packed_fp4
from builder.errors import Problem
from builder.schema.config import BuildConfig

PARTITION = "SGLANG_PP_LAYER_PARTITION"
SHARED_EXPERT = "SGLANG_SHARED_EXPERT_TP1"
_BLACKWELL = ("sm_100", "sm_103")
_AMD_ENVIRONMENT = {
    "SGLANG_USE_ROCM700A": "0",
    "SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton",
    "AITER_BF16_FP8_MOE_BOUND": "0",
}


def refusals(config: BuildConfig) -> Iterator[Problem]:
    """What SGLang itself would stop at, beside the rules of ``planning.rules``."""
    method = config.spec.method
    if method in ("ngram", "draft_model"):
        yield Problem(
            "spec",
            method,
            "SGLang takes only EAGLE and DSPARK for DeepSeek-V4 (SGLang 0.5.23, its DeepSeek-V4 defaults)",
            "use spec=mtp, spec=dspark or spec=none",
        )
    if method == "dspark" and config.parallel.pp > 1:
        yield Problem(
            "pp",
            config.parallel.pp,
            "SGLang runs DSpark with one stage only (SGLang 0.5.23, its speculative settings)",
            "use pp=1, or spec=none",
        )
    if config.runtime.dtype == "float64":
        yield Problem("runtime.dtype", "float64", "SGLang has no such dtype", "use bfloat16 or float32")


def write(config: BuildConfig, model: str, partition: tuple[int, ...]) -> Command:
    """The command that equals ``config``."""
    command = Command("sglang", ["sglang", "serve"])
    command.put("trust-remote-code")
    command.put("model-path", model)
    _parallel(command, config, partition)
    _memory(command, config)
    _hardware(command, config)
    command.put("tool-call-parser", "deepseekv4")
    command.put("reasoning-parser", "deepseek-v4")
    _speculation(command, config)
    return command


def attention_dp(config: BuildConfig) -> bool:
    """The replicas share their experts: SGLang's data-parallel attention inside one large tp group."""
    return config.parallel.dp > 1 and config.parallel.ep > config.parallel.tp


def _parallel(command: Command, config: BuildConfig, partition: tuple[int, ...]) -> None:
    parallel = config.parallel
    pp, tp, ep, dp = parallel.pp, parallel.tp, parallel.ep, parallel.dp
    group = dp * tp if attention_dp(config) else tp
    command.put("tp-size", group)
    if pp > 1:
        command.put("pp-size", pp)
        command.environment[PARTITION] = ",".join(map(str, partition))
        command.notes.append(f"{PARTITION} must reach every process; without it SGLang cuts the layers its own way")
        command.warnings.append("no cell of the SGLang cookbook for DeepSeek-V4 uses pipeline stages (SGLang cookbook)")
        if config.spec.method != "none":
            command.warnings.append("pp > 1 with a drafter: no SGLang recipe combines them (SGLang cookbook)")
    if attention_dp(config):
        command.put("attn-dp-size", dp)
        command.notes.append(
            "SGLang counts all ranks of the group as tp, and request and chunk limits are totals; versions before "
            f"0.5.23 write --dp-size {dp} --enable-dp-attention for --attn-dp-size {dp}"
        )
    elif dp > 1:
        command.put("dp-size", dp)
    if ep > 1:
        command.put("ep-size", ep)
    if ep not in (1, group):
        command.warnings.append(
            f"ep={ep} of {group} ranks: SGLang cuts each expert over the {group // ep} ranks that are left, builder "
            "keeps whole experts (SGLang 0.5.23, expert layers)"
        )
    if parallel.shared_expert == "replicated":
        command.environment[SHARED_EXPERT] = "1"


def _memory(command: Command, config: BuildConfig) -> None:
    runtime, layout = config.runtime, config.cache.layout
    share = config.parallel.dp if attention_dp(config) else 1
    command.put("kv-cache-dtype", "bfloat16" if layout == "plain" else "fp8_e4m3")
    command.put("page-size", ENTRY_BLOCK)
    if layout == "fp8_fp4":
        command.put("enable-deepseek-v4-fp4-indexer")
        command.warnings.append("cache=fp8_fp4: SGLang calls its FP4 indexer experimental (SGLang 0.5.23)")
    command.put("context-length", runtime.max_model_len)
    command.put("max-running-requests", runtime.max_num_seqs * share)
    command.put("chunked-prefill-size", runtime.max_num_batched_tokens * share)
    command.put("mem-fraction-static", runtime.memory_fraction)
    command.notes.append(
        "--mem-fraction-static covers weights and cache; activations and graphs come on top, in vLLM and in a plan "
        "without plan.engine=sglang they are inside the fraction"
    )
    if runtime.dtype == "float32":
        command.put("dtype", "float32")
    if runtime.reserve_bytes and config.hardware.total_bytes:
        fraction = runtime.memory_fraction - runtime.reserve_bytes / config.hardware.total_bytes
        command.warnings.append(
            f"runtime.reserve_bytes={runtime.reserve_bytes} has no flag: --mem-fraction-static {fraction:.4f} leaves "
            "the same budget"
        )
    words, size = given_bytes(config, "graph_bytes", "communication_bytes", "other_bytes")
    if size:
        what = f"{words} have no flags, {size} bytes in all" if "," in words else f"{words} has no flag"
        command.warnings.append(f"{what}: it must find room beside --mem-fraction-static {runtime.memory_fraction}")
    if runtime.weights != "native":
        command.warnings.append(f"runtime.weights={runtime.weights} has no flag: SGLang keeps the weights as stored")


def _hardware(command: Command, config: BuildConfig) -> None:
    arch, vendor, fp4 = architecture(config), config.hardware.vendor, packed_fp4(config.model)
    if vendor == "amd":
        command.environment |= _AMD_ENVIRONMENT
        command.put("attention-backend", "dsv4")
        command.put("swa-full-tokens-ratio", 0.15 if arch == "gfx950" else 0.1)
        command.put("disable-shared-experts-fusion")
        if attention_dp(config):
            command.environment["SGLANG_DP_USE_GATHERV"] = "1"
        if arch == "gfx942" and fp4:
            command.warnings.append(
                f"{config.hardware.device}: the published cell is for an FP8 copy of the experts, and for V4-Flash "
                "only (SGLang cookbook)"
            )
    elif vendor == "nvidia" and arch in _BLACKWELL and fp4:
        if attention_dp(config):
            command.put("moe-a2a-backend", "megamoe")
        else:
            command.put("moe-runner-backend", "flashinfer_mxfp4")
            command.put("disable-flashinfer-autotune")
    elif vendor == "nvidia" and fp4 and (arch == "sm_90" or arch.startswith("sm_12")):
        command.put("moe-runner-backend", "marlin")
        command.warnings.append(
            "the Marlin runner repacks the FP4 experts: weights grow by about 25 percent (InferenceX issue 2128)"
        )
    elif vendor in ("xpu", "cpu"):
        command.warnings.append(f"hardware={vendor}: no SGLang recipe for DeepSeek-V4 is published (SGLang cookbook)")


def _speculation(command: Command, config: BuildConfig) -> None:
    spec = config.spec
    match spec.method:
        case "mtp" | "eagle":
            command.put("speculative-algorithm", "EAGLE")
            if spec.own_checkpoint is not None:
                command.put("speculative-draft-model-path", spec.own_checkpoint)
            command.put("speculative-num-steps", spec.drafts)
            command.put("speculative-eagle-topk", 1)
            command.put("speculative-num-draft-tokens", spec.drafts + 1)
            if spec.method == "eagle" and spec.own_checkpoint is None:
                command.warnings.append(
                    "spec=eagle reads back as spec=mtp: SGLang has one word, EAGLE, for the release's own block "
                    "(InferenceX pull request 2305)"
                )
        case "dspark":
            command.put("speculative-algorithm", "DSPARK")
            command.put("speculative-dspark-block-size", spec.drafts)
        case _:
            pass
