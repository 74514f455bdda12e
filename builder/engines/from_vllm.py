"""A command of vLLM as overrides."""

from __future__ import annotations

from typing import Any, cast

from builder.engines.command import EXPERTS
from builder.engines.found import Found
from builder.engines.reading import Read, fraction, layers_of, number
from builder.engines.to_vllm import INDEXER, PARTITION
from builder.errors import ConfigError, Problem

DEFAULT_MEMORY_FRACTION = 0.92
_MTP = ("mtp", "deepseek_mtp")
_DTYPES = {"auto": None, "bfloat16": "bfloat16", "float32": "float32", "float": "float32"}


def read(command: Read, found: Found) -> None:
    """Take what configures the model out of the command; the rest stays in ``command.flags``."""
    _parallel(command, found)
    _memory(command, found)
    _speculation(command, found)


def _parallel(command: Read, found: Found) -> None:
    tp = number(command, "tensor-parallel-size") or 1
    pp = number(command, "pipeline-parallel-size") or 1
    dp = number(command, "data-parallel-size") or 1
    expert_parallel = bool(command.take("enable-expert-parallel", False))
    command.take("no-enable-expert-parallel")
    for axis, size in (("pp", pp), ("tp", tp), ("dp", dp)):
        if size > 1:
            found.add(axis, size)
    if dp * tp > 1 and (expert_parallel or dp > 1):
        found.add("ep", dp * tp)
    divides = _experts_divide(found, dp, tp)
    if divides and dp > 1 and not expert_parallel:
        found.warnings.append(
            f"without --enable-expert-parallel vLLM cuts every expert over all dp·tp = {dp * tp} ranks: ep={dp * tp} "
            "has the same bytes per rank, and whole experts"
        )
    partition = command.environment.get(PARTITION)
    if partition is not None and pp > 1:
        found.add("parallel.partition", layers_of(partition, PARTITION))
    elif pp > 1:
        found.notes.append(f"without {PARTITION} vLLM cuts the layers its own way; parallel.partition= fixes a list")


def _experts_divide(found: Found, dp: int, tp: int) -> bool:
    # What does not divide is said: vLLM's expert group is all ranks, and the share of each must be whole.
    experts = next((EXPERTS[word[6:]] for word in found.overrides if word[6:] in EXPERTS), 0)
    if dp > 1 and experts % (dp * tp):
        sizes = (range(dp - 1, 0, -1), range(dp + 1, 4 * dp + 1))
        nearest = [next((n for n in tried if experts % (n * tp) == 0), 0) for tried in sizes]
        works = " or ".join(f"--data-parallel-size {n}" for n in nearest if n) or "another --tensor-parallel-size"
        found.warnings.append(
            f"ep={dp * tp} is refused, and the line with it: {experts} experts do not divide by dp·tp = {dp * tp}; "
            f"vLLM needs redundant experts, or {works}"
        )
        return False
    return True


def _memory(command: Read, found: Found) -> None:
    layout = str(command.take("kv-cache-dtype", "auto"))
    attention = command.take("attention-config", {})
    if not isinstance(attention, dict):
        raise ConfigError([Problem("--attention-config", attention, "holds no JSON object", "write '{…}'")])
    fp4 = _fp4_indexer(command, cast("dict[str, Any]", attention), found)
    if layout in ("bfloat16", "float16"):
        found.choose("cache", "plain")
    elif layout in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"):
        found.choose("cache", "fp8_fp4" if fp4 else "fp8")
    else:
        found.choose("cache", "fp8")
        found.warnings.append(f"--kv-cache-dtype {layout} has no layout in builder: cache=fp8 is the nearest")
    _length(command, found)
    seqs, tokens = number(command, "max-num-seqs"), number(command, "max-num-batched-tokens")
    for key, value in (("runtime.max_num_seqs", seqs), ("runtime.max_num_batched_tokens", tokens)):
        if value is None:
            found.notes.append(f"vLLM chooses {key.partition('.')[2]} by the device: {key} stays at builder's default")
        else:
            found.add(key, value)
    share = fraction(command, "gpu-memory-utilization")
    if share is None:
        found.assume("runtime.memory_fraction", DEFAULT_MEMORY_FRACTION)
    else:
        found.add("runtime.memory_fraction", share)
    fixed = command.flags.get("kv-cache-memory-bytes")
    if fixed is not None:
        found.not_carried.append("kv-cache-memory-bytes")
        found.warnings.append(f"--kv-cache-memory-bytes {fixed} fixes the cache in vLLM; builder plans by the fraction")
    _formats(command, found)


def _formats(command: Read, found: Found) -> None:
    dtype = str(command.take("dtype", "auto"))
    if dtype not in _DTYPES:
        found.warnings.append(f"--dtype {dtype} has no dtype in builder: bfloat16 is taken")
    elif _DTYPES[dtype] not in (None, "bfloat16"):
        found.add("runtime.dtype", _DTYPES[dtype])
    block = number(command, "block-size")
    if block not in (None, 256):
        found.warnings.append(f"--block-size {block}: builder counts entries, not blocks; vLLM rounds up to blocks")


def _fp4_indexer(command: Read, attention: dict[str, Any], found: Found) -> bool:
    older, kind = attention.get("use_fp4_indexer_cache"), str(attention.get(INDEXER, "auto"))
    if older is not None:
        found.warnings.append(
            f"use_fp4_indexer_cache is of older versions, and vLLM 0.33.0 stops at it: it has {INDEXER}=mxfp4 or fp8"
        )
        return bool(older)
    if kind not in ("auto", "fp8", "mxfp4"):
        found.warnings.append(f"{INDEXER}={kind} has no layout in builder: FP8 indexer keys are planned")
    if kind == "auto" and "VLLM_ROCM_USE_AITER" in command.environment:
        found.notes.append("on MI355X with aiter vLLM keeps indexer keys in MXFP4 by itself: there it is cache=fp8_fp4")
    return kind == "mxfp4"


def _length(command: Read, found: Found) -> None:
    length = command.flags.get("max-model-len")
    if length in (None, "auto", "-1"):
        command.take("max-model-len")
        words = (
            "is left out: vLLM takes the model's own limit" if length is None else "auto: vLLM fits it to the memory"
        )
        found.notes.append(f"--max-model-len {words}, 1,048,576 for every release; plan with capacity.longest_request")
        found.assume("runtime.max_model_len", 1_048_576)
    else:
        found.add("runtime.max_model_len", number(command, "max-model-len"))


def _speculation(command: Read, found: Found) -> None:
    value = command.take("speculative-config")
    method, tokens = command.take("spec-method"), number(command, "spec-tokens")
    own = command.take("spec-model")
    settings: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if value is not None and not isinstance(value, dict):
        works = "write --speculative-config '{…}'"
        raise ConfigError([Problem("--speculative-config", value, "holds no JSON object", works)])
    settings = {"method": method, "num_speculative_tokens": tokens, "model": own} | settings
    method, tokens, own = settings["method"], settings["num_speculative_tokens"], settings["model"]
    if method is None and own is None:
        return
    if method in _MTP:
        found.choose("spec", "mtp")
    elif method in ("ngram", "dspark", "draft_model"):
        found.choose("spec", method)
    elif method == "eagle":
        found.choose("spec", "eagle")
        if own is not None:
            found.add("spec.checkpoint", own)
    else:
        found.warnings.append(f"speculative method {method} is not in builder: spec=none is planned")
        return
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise ConfigError([Problem("num_speculative_tokens", tokens, "is no number of drafts", "use at least 1")])
    if tokens is not None:
        found.add("spec.num_speculative_tokens", tokens)
    for theirs, ours in (("prompt_lookup_max", "max_ngram"), ("prompt_lookup_min", "min_ngram")):
        if method == "ngram" and settings.get(theirs) is not None:
            found.add(f"spec.{ours}", settings[theirs])
    if method == "draft_model":
        _draft(found, own)
    _without_bytes(settings, found)


def _without_bytes(settings: dict[str, Any], found: Found) -> None:
    # What changes no byte of a plan.
    if settings.get("use_local_argmax_reduction"):
        found.warnings.append("use_local_argmax_reduction fails at the start with a DeepSeek-V4 draft (vLLM #57568)")
    rest = settings.keys() - {"method", "num_speculative_tokens", "model", "prompt_lookup_max", "prompt_lookup_min"}
    if rest:
        found.notes.append(f"--speculative-config: {', '.join(sorted(rest))} change no bytes and were left out")


def _draft(found: Found, name: str | None) -> None:
    from builder.engines.importing import release_of

    release = release_of(name) if name else None
    if release:
        found.add("model@draft", release)
    else:
        found.warnings.append(f"the draft {name} is no release that builder knows: add model@draft=")
