"""A command of SGLang as overrides."""

from __future__ import annotations

from builder.engines.found import Found
from builder.engines.reading import Read, fraction, layers_of, number
from builder.engines.to_sglang import PARTITION, SHARED_EXPERT

DEFAULT_MAX_RUNNING_REQUESTS = 256
"""What SGLang 0.5.23 sets for DeepSeek-V4."""

_EXPERT_BACKENDS = (
    "ascend_fuseep",
    "deepep",
    "deepep_v2",
    "flashinfer",
    "flashinfer_megamoe",
    "megamoe",
    "mooncake",
    "mori",
    "nixl",
    "pplx",
)
"""Exchanges between experts for which SGLang sets ep to tp."""

_TRUE = ("1", "true", "yes", "y", "on")


def read(command: Read, found: Found) -> None:
    """Take what configures the model out of the command; the rest stays in ``command.flags``."""
    share = _parallel(command, found)
    _memory(command, found, share)
    _speculation(command, found)


def _parallel(command: Read, found: Found) -> int:
    """Returns what divides the request and chunk limits: the replicas inside one tp group."""
    group = number(command, "tp-size") or 1
    pp = number(command, "pp-size") or 1
    dp = number(command, "dp-size") or 1
    inner = number(command, "attn-dp-size") or 1
    if command.take("enable-dp-attention", False) and inner == 1:
        dp, inner = 1, dp
    ep = number(command, "ep-size")
    backend = str(command.flags.get("moe-a2a-backend", "none"))
    if group % inner:
        found.warnings.append(f"tp={group} does not divide by the {inner} data-parallel attention groups: SGLang stops")
        inner = 1
    if ep is None:
        ep = group if backend in _EXPERT_BACKENDS else 1
        if ep > 1:
            found.notes.append(f"--moe-a2a-backend {backend} makes ep={ep}: SGLang sets it to tp")
    if inner > 1 and ep == 1:
        ep = group
        found.warnings.append(
            f"data-parallel attention without ep: SGLang cuts every expert over all {group} ranks; ep={group} has the "
            "same bytes per rank, and whole experts"
        )
    for axis, size in (("pp", pp), ("tp", group // inner), ("dp", dp * inner), ("ep", ep)):
        if size > 1:
            found.add(axis, size)
    if command.environment.get(SHARED_EXPERT, "").lower() in _TRUE:
        found.add("parallel.shared_expert", "replicated")
    partition = command.environment.get(PARTITION)
    if partition is not None and pp > 1:
        found.add("parallel.partition", layers_of(partition, PARTITION))
    elif pp > 1:
        found.notes.append(f"without {PARTITION} SGLang cuts the layers its own way; parallel.partition= fixes a list")
    return inner


def _memory(command: Read, found: Found, share: int) -> None:
    layout = str(command.take("kv-cache-dtype", "auto"))
    fp4 = bool(command.take("enable-deepseek-v4-fp4-indexer", False))
    if layout in ("bfloat16", "bf16"):
        found.choose("cache", "plain")
    else:
        found.choose("cache", "fp8_fp4" if fp4 else "fp8")
        if layout not in ("auto", "fp8_e4m3"):
            found.warnings.append(f"--kv-cache-dtype {layout} is refused by SGLang for DeepSeek-V4: cache=fp8 is taken")
    _sizes(command, found, share)


def _sizes(command: Read, found: Found, share: int) -> None:
    length = number(command, "context-length")
    if length is None:
        found.notes.append("--context-length is left out: SGLang takes the model's own limit, 1,048,576")
        found.assume("runtime.max_model_len", 1_048_576)
    else:
        found.add("runtime.max_model_len", length)
    requests = number(command, "max-running-requests")
    if requests is None:
        found.assume("runtime.max_num_seqs", max(1, DEFAULT_MAX_RUNNING_REQUESTS // share))
    else:
        found.add("runtime.max_num_seqs", max(1, requests // share))
    chunk = number(command, "chunked-prefill-size", least=-1)
    if chunk is None or chunk < 1:
        words = "is left out: SGLang chooses by the device" if chunk is None else "is off: a prompt is one piece"
        found.notes.append(f"--chunked-prefill-size {words}; runtime.max_num_batched_tokens stays at builder's default")
    else:
        found.add("runtime.max_num_batched_tokens", max(1, chunk // share))
    fixed = fraction(command, "mem-fraction-static")
    if fixed is None:
        found.notes.append("--mem-fraction-static is left out: SGLang chooses by the device; builder's default stays")
    else:
        found.add("runtime.memory_fraction", fixed)
    _formats(command, found)


def _formats(command: Read, found: Found) -> None:
    page = number(command, "page-size")
    if page not in (None, 256):
        found.warnings.append(f"--page-size {page}: builder counts entries, not pages; SGLang rounds up to pages")
    dtype = str(command.take("dtype", "auto"))
    if dtype in ("float32", "float"):
        found.add("runtime.dtype", "float32")
    elif dtype not in ("auto", "bfloat16"):
        found.warnings.append(f"--dtype {dtype} has no dtype in builder: bfloat16 is taken")


def _speculation(command: Read, found: Found) -> None:
    method = command.take("speculative-algorithm")
    own = command.take("speculative-draft-model-path")
    steps, tokens = number(command, "speculative-num-steps"), number(command, "speculative-num-draft-tokens")
    block = number(command, "speculative-dspark-block-size")
    topk = number(command, "speculative-eagle-topk")
    if method is None:
        return
    match str(method).upper():
        case "EAGLE" | "NEXTN" as word:
            found.choose("spec", "eagle" if own else "mtp")
            if own:
                found.add("spec.checkpoint", own)
            count = steps or (tokens - 1 if tokens else None)
            if word == "NEXTN":
                found.warnings.append(
                    "NEXTN is the word of DeepSeek-V3: SGLang needs EAGLE for V4, and the decode server stops "
                    "otherwise (InferenceX pull request 2305)"
                )
            if topk not in (None, 1):
                found.warnings.append(f"--speculative-eagle-topk {topk}: SGLang takes only 1 for DeepSeek-V4")
        case "DSPARK":
            found.choose("spec", "dspark")
            count = block or (tokens - 1 if tokens else None)
        case _:
            found.warnings.append(f"speculative algorithm {method} is not for DeepSeek-V4: spec=none is planned")
            return
    if count:
        found.add("spec.num_speculative_tokens", count)
