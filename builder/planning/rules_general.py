"""Rules of arithmetic: they hold for every engine and for our own runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from builder.assembly.measure import footprint
from builder.assembly.stages import Assembly, assemble
from builder.errors import ConfigError
from builder.planning.capacity import ACTIVATIONS, BESIDE_THE_POOLS, budget_bytes, least_fraction, outside_bytes
from builder.planning.engine_terms import message_bytes_per_token
from builder.planning.rank import RankPlan
from builder.planning.rules import NOTE, WARNING, Rule, Said, Situation
from builder.schema.config import BuildConfig

MARGIN = 0.02
"""Share of a device's memory below which room counts as none: loads differ by as much between versions."""

CORRECTION = 3 << 29
"""Bytes by which one correction of an engine raised the least cache of V4-Pro: 10.55 to 12.06 GiB."""

ACTIVATION_SHARE = 0.05

MOST_TRIED = 6
"""Device counts that are tried from the lower bound on."""


def _limiting(at: Situation) -> RankPlan | None:
    judged = [rank for rank in at.ranks if rank.headroom is not None]
    return min(judged, key=lambda rank: rank.headroom or 0, default=None)


def _budget(at: Situation) -> Iterator[Said]:
    rank, budget = _limiting(at), budget_bytes(at.config)
    if rank is None or budget is None or rank.free is None or rank.free >= 0:
        return
    lines, start, what = rank.booked, budget, "no memory is left for the cache: budget"
    if at.engine == "sglang":
        beside = {name: size for name, size in rank.booked.items() if name in BESIDE_THE_POOLS}
        lines = {name: size for name, size in rank.booked.items() if name not in beside}
        outside = outside_bytes(at.config, at.config.hardware.total_bytes or 0)
        if outside - sum(beside.values()) == rank.free:
            lines, start, what = beside, outside, "what a step works in has no room outside the fraction:"
    terms = " - ".join(f"{name} {size:,}" for name, size in lines.items() if size)
    text = f"{what} {start:,} - {terms} = {rank.free:,} bytes on rank {rank.place.rank}"
    works = "; ".join([*_least_fraction(at), _fewer_bytes(at, budget, divide=start == budget)])
    yield Said("runtime.memory_fraction", at.config.runtime.memory_fraction, text, works)


def _least_fraction(at: Situation) -> Iterator[str]:
    # Tried with the whole plan: with SGLang what stands beside the fraction needs room too.
    ranks = [rank for rank in at.ranks if rank.place.dp == 0]
    static = at.engine == "sglang"
    asked = max((rank.static_bytes if static else rank.nbytes) + rank.request_bytes for rank in ranks)
    least = least_fraction(at.config, asked)
    runtime = at.config.runtime
    if least is not None and _fits(replace(at.config, runtime=replace(runtime, memory_fraction=least))):
        where = (
            " (SGLang counts it of what is free before loading, which is less than the device has)" if static else ""
        )
        yield f"runtime.memory_fraction={least:.4f} is the least that holds a request{where}"


def _fewer_bytes(at: Situation, budget: int, *, divide: bool) -> str:
    lower = "lower runtime.max_num_batched_tokens"
    if not divide:
        return lower
    static = at.engine == "sglang"
    needed = sum(rank.static_bytes if static else rank.nbytes for rank in at.ranks if rank.place.dp == 0)
    return f"divide a replica among {_devices(at, max(1, -(-needed // max(1, budget))))}, or {lower}"


def _devices(at: Situation, fewest: int) -> str:
    # The sum of the bytes is a bound only: layers are whole, and stages repeat activations.
    for pp in range(fewest, min(fewest + MOST_TRIED, at.config.model.num_hidden_layers + 1)):
        parallel = replace(at.config.parallel, pp=pp, tp=1, ep=1, dp=1, partition="auto")
        if _fits(replace(at.config, parallel=parallel)):
            return f"at least {fewest} devices ({pp} do: pp={pp} tp=1)"
    return f"more than {max(1, fewest - 1)} devices"


def _fits(config: BuildConfig) -> bool:
    from builder.planning.document import plan

    try:
        return plan(config).fits is True
    except ConfigError:  # the named engine does not start it
        return False


def _margin(at: Situation) -> Iterator[Said]:
    rank, memory = _limiting(at), at.config.hardware.total_bytes
    if rank is None or rank.headroom is None or memory is None:
        return
    least = max(math.ceil(MARGIN * memory), CORRECTION)
    if not 0 <= rank.headroom < least:
        return
    text = (
        f"rank {rank.place.rank} has {rank.headroom:,} bytes left with one request of {rank.longest:,} tokens, "
        f"{rank.headroom / memory:.1%} of the device: an engine's next version may load more, and one correction took "
        "1.50 GiB more for the same setting"
    )
    yield Said("runtime.memory_fraction", at.config.runtime.memory_fraction, text, f"keep {least:,} bytes free")


def _requests(at: Situation) -> Iterator[Said]:
    rank, seqs = _limiting(at), at.config.runtime.max_num_seqs
    if rank is None or rank.capacity is None or rank.free is None or rank.free < 0 or rank.capacity.requests >= seqs:
        return
    if (rank.pages or rank.pools) and not rank.fits:
        return  # the engine lets none in, and its own rule says so
    each = rank.cache.nbytes(rank.longest)
    text = (
        f"requests of {rank.longest:,} tokens: {rank.free:,} / {each:,} bytes = {rank.capacity.requests} fit, "
        f"fewer than max_num_seqs={seqs}"
    )
    yield Said("runtime.max_num_seqs", seqs, text, f"use {max(1, rank.capacity.requests)}, or shorter requests")


def _two_parts(at: Situation) -> Iterator[Said]:
    rank = _limiting(at)
    if rank is not None:
        fixed, growing = rank.cache.fixed, rank.cache.nbytes(rank.longest) - rank.cache.fixed
        text = (
            f"a request of {rank.longest:,} tokens takes {fixed:,} bytes fixed + {growing:,} for its tokens on rank "
            f"{rank.place.rank}: tokens that fit depend on how many requests hold them, one figure per token misleads"
        )
        yield Said("runtime.max_model_len", rank.longest, text)


def _batched_tokens(at: Situation) -> Iterator[Said]:
    rank, memory, tokens = _limiting(at), at.config.hardware.total_bytes, at.config.runtime.max_num_batched_tokens
    if rank is None or memory is None or rank.booked[ACTIVATIONS] < ACTIVATION_SHARE * memory:
        return
    text = (
        f"max_num_batched_tokens={tokens:,} takes an estimated {rank.booked[ACTIVATIONS]:,} bytes of activations "
        "from the cache, and the start-up profile of an engine may not see all of it"
    )
    yield Said("runtime.max_num_batched_tokens", tokens, text, f"try {max(1, tokens // 2):,}")


def _message(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1:
        each, streams = message_bytes_per_token(at.config), at.config.model.hc_mult
        text = f"a stage sends {each:,} bytes per token to the next: {streams} streams, {streams} x the hidden state"
        yield Said("pp", at.config.parallel.pp, text)


def _partition(at: Situation) -> Iterator[Said]:
    pp, rule = at.config.parallel.pp, at.config.parallel.partition
    if pp == 1 or rule == "auto":
        return
    best = assemble(replace(at.config, parallel=replace(at.config.parallel, partition="auto")))
    needed = _stage_bytes(assemble(at.config))
    now, then = max(needed), max(_stage_bytes(best))
    if now > then:
        stage = needed.index(now)
        text = (
            f"stage {stage} of {list(at.partition)} needs {now:,} bytes before activations, the largest of "
            f"{list(best.partition)} {then:,}"
        )
        yield Said("parallel.partition", list(at.partition), text, "use parallel.partition=auto")


def _stage_bytes(assembly: Assembly) -> list[int]:
    # The first rank of each stage, which holds the most.
    first = [place for place in assembly.places() if place.dp == place.tp == 0]
    return [
        sum(footprint(part, assembly.shards(place)).nbytes for _, part in assembly.stages[place.pp].members)
        for place in first
    ]


def _explicit(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1:
        layout = ",".join(map(str, at.partition))
        yield Said(
            "parallel.partition",
            layout,
            f"the stages hold {layout} layers; engines split differently, and equal layers are not equal caches",
            "give this list explicitly (vLLM: VLLM_PP_LAYER_PARTITION)",
        )


def _block(at: Situation) -> Iterator[Said]:
    block, drafts = at.config.model.dspark_block_size, at.config.spec.drafts
    if at.config.spec.method == "dspark" and block is not None and drafts > block:
        text = (
            f"spec.num_speculative_tokens={drafts} is more than dspark_block_size={block}: positions beyond the block "
            "are hardly ever accepted (13.6% of drafts at 7, 23.8% at 5, measured)"
        )
        yield Said("spec.num_speculative_tokens", drafts, text, f"use at most {block}")


def _saturation(at: Situation) -> Iterator[Said]:
    drafts = at.config.spec.drafts
    if at.config.spec.method == "mtp" and drafts > 3:
        text = f"MTP gains little beyond 3 drafts (accepted length 2.49 at 3, 2.55 at 5), here {drafts}"
        yield Said("spec.num_speculative_tokens", drafts, text, "use 3")


def _graphs(at: Situation) -> Iterator[Said]:
    drafts, seqs = at.config.spec.drafts, at.config.runtime.max_num_seqs
    if drafts:
        text = (
            f"captured graphs are counted in tokens: {seqs} requests with {drafts} drafts are "
            f"{seqs} x {1 + drafts} = {seqs * (1 + drafts)} tokens"
        )
        yield Said("runtime.max_num_seqs", seqs, text, f"capture multiples of {1 + drafts}")


def _synthetic(at: Situation) -> Iterator[Said]:
    if at.config.spec.drafts:
        text = (
            "published throughput with drafts often pins the accepted length (2.49 for V4-Pro): such runs say nothing "
            "of answers (0.0000 on SWE-bench), and random prompts are accepted less than real ones"
        )
        yield Said(
            "spec", at.config.spec.method, text, "measure acceptance on your own prompts, with the chat template"
        )


def _unified(at: Situation) -> Iterator[Said]:
    device = at.config.hardware.devices.get(at.config.hardware.device)
    if device is not None and device.unified_memory and at.config.hardware.has_device_memory:
        text = f"{at.config.hardware.device} shares its memory with the processor: files being read count too"
        yield Said("hardware.device", at.config.hardware.device, text, "give runtime.other_bytes for the host's part")


GENERAL_RULES = (
    Rule("budget", NOTE, "InferenceX PR #2345, SGLang in InferenceX #2128", _budget),
    Rule("margin", WARNING, "InferenceX PR #1461, local-inference-lab/vllm PR #679, vllm-ascend #14678", _margin),
    Rule("requests", NOTE, "InferenceX PR #2194", _requests),
    Rule("two-parts", NOTE, "vLLM #51041, TensorRT-LLM PR #14698", _two_parts),
    Rule("batched-tokens", NOTE, "InferenceX PR #2590, local-inference-lab/vllm PR #679", _batched_tokens),
    Rule("message", NOTE, "sglang PR #23661", _message),
    Rule("partition", WARNING, "TensorRT-LLM #3827, llama.cpp PR #24162", _partition),
    Rule("layout", NOTE, "Megatron-Bridge PR #4131", _explicit),
    Rule("dspark-block", WARNING, "vLLM PR #41834", _block),
    Rule("mtp-saturation", NOTE, "InferenceX golden acceptance files", _saturation),
    Rule("graph-sizes", NOTE, "InferenceX B200 and B300 scripts", _graphs),
    Rule("pinned-acceptance", NOTE, "InferenceX throughput scripts", _synthetic),
    Rule("unified-memory", NOTE, "unsloth PR #10283", _unified),
)
"""The registration of a rule of arithmetic: one entry."""
