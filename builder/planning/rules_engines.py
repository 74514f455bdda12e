"""Rules that only an engine or its kernels impose. Our own runtime shares none of them."""

from __future__ import annotations

from collections.abc import Iterator

from builder.planning.rules import NOTE, REFUSAL, WARNING, Rule, Said, Situation
from builder.planning.rules_engines_parallel import PARALLEL_RULES, experts_of, on_atom

LEAST_FP8_SM = 89
LARGE_LOGITS = 1 << 30
PRO_SLOT = 18_710_528
PUBLISHED_H200_CONTEXT = 200_000


def _atom_fp4(at: Situation) -> Iterator[Said]:
    if at.arch == "gfx942" and experts_of(at) == "fp4":
        text = "gfx942 runs FP8 experts only"
        yield Said("model", at.config.model.name, text, "use model=v4_flash_base, or hardware.device=mi355x")


def _atom_device(at: Situation) -> Iterator[Said]:
    vendor = at.config.hardware.vendor
    if at.engine == "atom" and vendor != "amd":  # a note on every other plan would be noise
        text = f"its kernels are AMD's, and hardware={vendor} has none of them"
        yield Said("hardware", vendor, text, "use hardware=amd, or plan.engine=vllm or sglang")


def _aiter(at: Situation) -> Iterator[Said]:
    if at.arch == "gfx942" and experts_of(at) == "fp4":
        text = (
            "--moe-backend aiter is refused on gfx942 with FP4 experts (AITER_MXFP4_MXFP4); the recipe page lists "
            "V4-Pro on MI300X as unsupported, a public benchmark runs it at TP8"
        )
        yield Said("hardware.device", at.config.hardware.device, text, "leave --moe-backend out")


def _fp8_gate(at: Situation) -> Iterator[Said]:
    if at.config.hardware.vendor == "nvidia" and 0 < at.sm < LEAST_FP8_SM and experts_of(at):
        text = f"the FP8 e4m3 kernels need sm_{LEAST_FP8_SM} or later, {at.config.hardware.device} is {at.arch}"
        yield Said("hardware.device", at.config.hardware.device, text, "use h100 or later, or l20")


def _fp4_index(at: Situation) -> Iterator[Said]:
    if at.sm >= 120 and at.config.cache.layout == "fp8_fp4":
        yield Said("cache", "fp8_fp4", f"the FP4 indexer cache aborts on {at.arch}", "use cache=fp8")


def _repacked(at: Situation) -> Iterator[Said]:
    device = at.config.hardware.devices.get(at.config.hardware.device)
    if (
        device is not None
        and not device.native_fp4
        and experts_of(at) == "fp4"
        and at.config.hardware.has_device_memory
    ):
        text = (
            f"{at.config.hardware.device} has no FP4 arithmetic: an engine repacks the experts, and V4-Pro at TP8 then "
            "loads 125.65 GiB a GPU on H200 (Marlin), about 131 on MI300X, where the files are 101.6"
        )
        yield Said("hardware.device", at.config.hardware.device, text, "plan with plan.engine to count it")


def _kv_dtype(at: Situation) -> Iterator[Said]:
    if at.config.cache.layout == "plain" and at.config.hardware.has_device_memory:
        text = "the kernels take an FP8 cache only; --kv-cache-dtype auto fails when the model is made"
        yield Said("cache", "plain", text, "use cache=fp8 (--kv-cache-dtype fp8)")


def _below_block(at: Situation) -> Iterator[Said]:
    block, drafts = at.config.model.dspark_block_size, at.config.spec.drafts
    if at.config.spec.method == "dspark" and block is not None and drafts < block:
        text = (
            f"0.26.0 refuses {drafts} drafts, fewer than the block of {block}, as incorrect; it works, and passes here"
        )
        yield Said("spec.num_speculative_tokens", drafts, text)


def _method_name(at: Situation) -> Iterator[Said]:
    if at.config.spec.method == "mtp":
        text = "the method is called EAGLE for DeepSeek-V4; NEXTN, its name for V3, crashes the decode server"
        yield Said("spec", "mtp", text, "write --speculative-algorithm EAGLE")


def _pages(at: Situation) -> Iterator[Said]:
    yield from _reserved(at, admitted=True)


def _too_many_pages(at: Situation) -> Iterator[Said]:
    yield from _reserved(at, admitted=False)


def _reserved(at: Situation, *, admitted: bool) -> Iterator[Said]:
    # Of the rank with the least room for its pages; stages have pages of their own sizes.
    judged = [(rank, rank.pages, rank.free) for rank in at.ranks if rank.pages is not None and rank.free is not None]
    if not judged:
        return
    rank, pages, free = min(judged, key=lambda one: one[2] - one[1].bytes_needed(one[0].longest))
    needed, most = pages.bytes_needed(rank.longest), at.config.model.max_position_embeddings
    if (needed <= free) is not admitted:
        return
    text = (
        f"a request of {rank.longest:,} tokens reserves {pages.needed(rank.longest):,} pages of {pages.page:,} bytes = "
        f"{needed:,} on rank {rank.place.rank}, mostly for tokens in flight in the compressors"
    )
    longest = pages.longest(free, most)
    if admitted:
        text += f"; the longest that {free:,} bytes admit is {longest:,}"
        yield Said("runtime.max_model_len", rank.longest, text, "lower max_num_batched_tokens to reserve less")
        return
    text += f", and {max(0, free):,} are free: it does not start"
    works = f"the longest that is admitted is {longest:,} tokens" if longest else "no request is admitted"
    yield Said("runtime.max_model_len", rank.longest, text, f"{works}; a lower max_num_batched_tokens reserves less")


def _pools(at: Situation) -> Iterator[Said]:
    judged = [(rank, rank.pools, rank.free) for rank in at.ranks if rank.pools is not None and rank.free is not None]
    if not judged:
        return
    rank, pools, free = min(judged, key=lambda one: one[2] - one[1].bytes_needed(one[0].longest))
    needed = pools.bytes_needed(rank.longest)
    if 0 <= free < needed:
        text = (
            f"a request of {rank.longest:,} tokens takes {needed:,} bytes of the pools on rank {rank.place.rank}, "
            f"{pools.fixed:,} of them open rows of every slot, and {free:,} are free"
        )
        longest = pools.longest(free, at.config.model.max_position_embeddings)
        yield Said(
            "runtime.max_model_len", rank.longest, text, f"the longest that the pools hold is {longest:,} tokens"
        )


def _slots(at: Situation) -> Iterator[Said]:
    seqs = at.config.runtime.max_num_seqs
    if at.config.model.num_attention_heads == 128 and on_atom(at):
        size = seqs * PRO_SLOT
        text = (
            f"state for max_num_seqs={seqs} is allocated at start, 17.84 MiB a slot: {size:,} bytes, outside the cache"
        )
        yield Said("runtime.max_num_seqs", seqs, text, "set it to the concurrency you need; 512 at most")


def _index_logits(at: Situation) -> Iterator[Said]:
    tokens, length, ratio = (
        at.config.runtime.max_num_batched_tokens,
        at.config.runtime.max_model_len,
        at.config.model.csa_ratio,
    )
    size = tokens * (length // ratio) * 4
    if size >= LARGE_LOGITS:
        works = max(1, LARGE_LOGITS // 2 // (length // ratio * 4))
        text = f"index scores of a step: {tokens:,} tokens x {length:,} / {ratio} entries x 4 bytes = {size:,} bytes; "
        text += "0.33.0 computes them 512 MiB at a time (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB), 0.23.0 ran out of memory"
        yield Said("runtime.max_num_batched_tokens", tokens, text, f"{works:,} tokens keep them under 512 MiB")


def _graph_memory(at: Situation) -> Iterator[Said]:
    if at.engine != "builder" and not at.config.runtime.graph_bytes:
        text = "captured graphs are not counted: their size is not known before a start"
        yield Said("runtime.graph_bytes", 0, text, "give runtime.graph_bytes from a log of the same setting")


def _h200_context(at: Situation) -> Iterator[Said]:
    length = at.config.runtime.max_model_len
    pro = at.config.model.num_attention_heads == 128
    if pro and at.config.hardware.device == "h200" and length > PUBLISHED_H200_CONTEXT:
        text = (
            f"max_model_len={length:,} on H200: the published 800,000 did not start, the recipe now says 200,000 "
            "and another 86,016"
        )
        yield Said("runtime.max_model_len", length, text, f"use at most {PUBLISHED_H200_CONTEXT}")


def _xpu(at: Situation) -> Iterator[Said]:
    if at.config.hardware.vendor == "xpu":
        text = "XPU is supported in source, without a published recipe"
        yield Said("hardware", "xpu", text)


def _packed_experts(at: Situation) -> Iterator[Said]:
    if experts_of(at) == "fp4":
        inner, hidden = at.config.model.moe_intermediate_size, at.config.model.hidden_size
        text = (
            f"experts are packed FP4: I8 [{inner}, {hidden // 2}] with E8M0 scales [{inner}, {hidden // 32}] stand for "
            f"{inner} x {hidden}; a build that takes them for FP8 stops in _load_w13 (size of tensor a must match)"
        )
        yield Said("model", at.config.model.name, text, "use a build that reads expert_dtype, or a Base release (FP8)")


_V, _S, _A = "vllm", "sglang", "atom"
ENGINE_RULES = (
    *PARALLEL_RULES,
    Rule("atom-fp4", REFUSAL, "ATOM recipe for gfx942", _atom_fp4, (_A,)),
    Rule("fp8-kernels", REFUSAL, "vLLM #40851, ktransformers #1978", _fp8_gate, (_V, _S)),
    Rule("fp4-indexer", REFUSAL, "vLLM recipes 689d6b9", _fp4_index, (_V,)),
    Rule("kv-dtype", REFUSAL, "vLLM PR #41834", _kv_dtype, (_V,)),
    Rule("aiter", NOTE, "InferenceX PR #2194", _aiter, (_V,)),
    Rule("repacked-experts", NOTE, "InferenceX #2128 and PR #2194, vLLM #45663", _repacked, (_V, _S)),
    Rule("below-block", NOTE, "vLLM #50012", _below_block, (_V,)),
    Rule("method-name", NOTE, "InferenceX PR #2305, vllm-ascend #9144", _method_name, (_S,)),
    Rule("pages", NOTE, "vLLM #54703 and #44376", _pages, (_V,)),
    Rule("pages-short", WARNING, "vLLM #44376", _too_many_pages, (_V,)),
    Rule("pools-short", WARNING, "SGLang 0.5.23, model_executor/pool_configurator.py", _pools, (_S,)),
    Rule("atom-device", REFUSAL, "ATOM recipes, all for AMD with AITER", _atom_device, (_A,)),
    Rule("slots", NOTE, "ATOM PR #1164, InferenceX PR #2345", _slots, (_A,)),
    Rule("index-scores", NOTE, "vLLM #45663", _index_logits, (_V,)),
    Rule("graph-memory", NOTE, "vLLM PR #41834, InferenceX #1222", _graph_memory, (_V, _S, _A)),
    Rule("h200-context", WARNING, "vLLM recipes #381", _h200_context, (_V,)),
    Rule("packed-experts", NOTE, "vLLM #40790", _packed_experts, (_V,)),
    Rule("xpu", NOTE, "vLLM models/deepseek_v4/xpu", _xpu, (_V,)),
)
"""The registration of an engine's rule: one entry."""
