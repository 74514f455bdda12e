"""Rules that only an engine or its kernels impose. Our own runtime shares none of them."""

from __future__ import annotations

from collections.abc import Iterator

from builder.planning.rules import NOTE, REFUSAL, WARNING, Rule, Said, Situation

LEAST_FP8_SM = 89
LARGE_LOGITS = 1 << 30
PRO_SLOT = 18_710_528
PUBLISHED_H200_CONTEXT = 200_000
DRAFTERS = ("mtp", "eagle", "dspark", "draft_model")


def _drafter_with_pp(at: Situation) -> Iterator[Said]:
    pp, method = at.config.parallel.pp, at.config.spec.method
    if pp > 1 and method in DRAFTERS:
        text = (
            f"pp={pp} with spec={method}: the drafter lives on the last stage only, and versions up to 0.27.1 refuse "
            "it (Pipeline parallelism is not supported for this model); in 0.33.0 the check is gone, not tried here"
        )
        yield Said("pp", pp, text, "use pp=1 or spec=none")


def _hash_layers(at: Situation) -> Iterator[Said]:
    hashed, first = at.config.model.num_hash_layers, at.assembly.partition[0]
    if at.config.parallel.pp > 1 and first < hashed:
        text = (
            f"stage 0 has {first} of the {hashed} layers that route by token id, and later stages are not given the "
            "ids (DeepSeek V4 hash MoE routing requires input_ids; NeMo falls back to scores without a word)"
        )
        yield Said("parallel.partition", list(at.assembly.partition), text, f"give stage 0 at least {hashed} layers")


def _mega_with_pp(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1 and at.sm >= 100:
        text = "--moe-backend deep_gemm_mega_moe reads the token ids on every stage, and later stages have none"
        yield Said("pp", at.config.parallel.pp, text, "use another moe backend with pp > 1")


def _mega_needs_ep(at: Situation) -> Iterator[Said]:
    if at.sm < 100 and at.config.hardware.vendor != "xpu":
        return
    fp4 = _experts(at) == "fp4"
    if at.config.parallel.ep == 1 or not fp4 or at.sm >= 120 or at.config.hardware.vendor == "xpu":
        text = (
            f"mega-MoE needs expert parallel and FP4 experts, and neither sm_120 nor XPU has it; here ep="
            f"{at.config.parallel.ep}, experts {_experts(at)}, {at.arch}"
        )
        yield Said("ep", at.config.parallel.ep, text, "use ep > 1, or another moe backend")


def _atom_pp(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1 and _on_atom(at):
        text = "DeepSeek-V4 has no stage split in this engine; its pipeline was validated on GLM-5.2 only"
        yield Said("pp", at.config.parallel.pp, text, "use pp=1 and tp=8")


def _atom_fp4(at: Situation) -> Iterator[Said]:
    if at.arch == "gfx942" and _experts(at) == "fp4":
        text = "gfx942 runs FP8 experts only"
        yield Said("model", at.config.model.name, text, "use model=v4_flash_base, or hardware.device=mi355x")


def _aiter(at: Situation) -> Iterator[Said]:
    if at.arch == "gfx942" and _experts(at) == "fp4":
        text = (
            "--moe-backend aiter is refused on gfx942 with FP4 experts (AITER_MXFP4_MXFP4); the recipe page lists "
            "V4-Pro on MI300X as unsupported, a public benchmark runs it at TP8"
        )
        yield Said("hardware.device", at.config.hardware.device, text, "leave --moe-backend out")


def _fp8_gate(at: Situation) -> Iterator[Said]:
    if at.config.hardware.vendor == "nvidia" and 0 < at.sm < LEAST_FP8_SM and _experts(at):
        text = f"the FP8 e4m3 kernels need sm_{LEAST_FP8_SM} or later, {at.config.hardware.device} is {at.arch}"
        yield Said("hardware.device", at.config.hardware.device, text, "use h100 or later, or l20")


def _fp4_index(at: Situation) -> Iterator[Said]:
    if at.sm >= 120 and at.config.cache.layout == "fp8_fp4":
        yield Said("cache", "fp8_fp4", f"the FP4 indexer cache aborts on {at.arch}", "use cache=fp8")


def _repacked(at: Situation) -> Iterator[Said]:
    device = at.config.hardware.devices.get(at.config.hardware.device)
    if device is not None and not device.native_fp4 and _experts(at) == "fp4" and at.config.hardware.has_device_memory:
        text = (
            f"{at.config.hardware.device} has no FP4 arithmetic: an engine repacks the experts, and V4-Pro at TP8 then "
            "loads 125.65 GiB a GPU on H200 (Marlin), about 131 on MI300X, where the files are 101.6"
        )
        yield Said("hardware.device", at.config.hardware.device, text, "plan with plan.engine to count it")


def _kv_dtype(at: Situation) -> Iterator[Said]:
    if at.config.cache.layout == "plain" and at.config.hardware.has_device_memory:
        text = "the kernels take an FP8 cache only; --kv-cache-dtype auto fails when the model is made"
        yield Said("cache", "plain", text, "use cache=fp8 (--kv-cache-dtype fp8)")


def _garbled(at: Situation) -> Iterator[Said]:
    model, parallel = at.config.model, at.config.parallel
    if model.num_attention_heads == 128 and parallel.tp > 1 and parallel.ep == 1:
        text = f"V4-Pro with tp={parallel.tp} and no expert parallel was reported to answer garbage, without an error"
        yield Said("tp", parallel.tp, text, "compare with dp and ep, which answered well")


def _ep_dropped(at: Situation) -> Iterator[Said]:
    parallel = at.config.parallel
    if at.config.hardware.vendor == "amd" and parallel.ep > 1 and parallel.dp > 1:
        text = (
            f"ep={parallel.ep} with data-parallel attention scored 0.0000 on GSM8K on MI355X; an earlier good score "
            "came from a launcher that had dropped --ep-size"
        )
        yield Said("ep", parallel.ep, text, "use ep=1, and read the resolved arguments in the log")


def _replicated_flag(at: Situation) -> Iterator[Said]:
    if at.config.parallel.shared_expert == "replicated":
        text = "a replicated shared expert is asked for by SGLANG_SHARED_EXPERT_TP1=1"
        yield Said("parallel.shared_expert", "replicated", text)


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
    judged = [rank for rank in at.ranks if rank.pages is not None and rank.free is not None]
    for rank in judged[:1]:
        assert rank.pages is not None
        needed, free = rank.pages.bytes_needed(rank.longest), min(one.free or 0 for one in judged)
        longest = rank.pages.longest(free, at.config.model.max_position_embeddings)
        text = (
            f"a request of {rank.longest:,} tokens reserves {rank.pages.needed(rank.longest):,} pages of "
            f"{rank.pages.page:,} bytes = {needed:,}, mostly for tokens in flight in the compressors; "
            f"the longest that {free:,} bytes admit is {longest:,}"
        )
        yield Said("runtime.max_model_len", rank.longest, text, "lower max_num_batched_tokens to reserve less")


def _slots(at: Situation) -> Iterator[Said]:
    seqs = at.config.runtime.max_num_seqs
    if at.config.model.num_attention_heads == 128 and _on_atom(at):
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
        text = f"index scores of a step: {tokens:,} tokens x {length:,} / {ratio} entries x 4 bytes = {size:,} bytes"
        yield Said("runtime.max_num_batched_tokens", tokens, text, f"{works:,} tokens keep them under 512 MiB")


def _graph_memory(at: Situation) -> Iterator[Said]:
    if at.config.plan is not None and at.config.plan.engine != "builder" and not at.config.runtime.graph_bytes:
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


def _on_atom(at: Situation) -> bool:
    # It runs on AMD only; without this its rules would be noise elsewhere.
    return at.config.hardware.vendor == "amd" or (at.config.plan is not None and at.config.plan.engine == "atom")


def _experts(at: Situation) -> str:
    quantization = at.config.model.quantization_config
    return "" if quantization is None or at.config.runtime.weights != "native" else quantization.expert_dtype


_V, _S, _A = "vllm", "sglang", "atom"
ENGINE_RULES = (
    Rule("pp-drafter", REFUSAL, "vLLM #52761, PR #53408", _drafter_with_pp, (_V,)),
    Rule("hash-layers", REFUSAL, "vLLM PR #55520, Megatron-Bridge PR #4131", _hash_layers, (_V, _S)),
    Rule("atom-pp", REFUSAL, "ATOM PR #1552", _atom_pp, (_A,)),
    Rule("atom-fp4", REFUSAL, "ATOM recipe for gfx942", _atom_fp4, (_A,)),
    Rule("fp8-kernels", REFUSAL, "vLLM #40851, ktransformers #1978", _fp8_gate, (_V, _S)),
    Rule("fp4-indexer", REFUSAL, "vLLM recipes 689d6b9", _fp4_index, (_V,)),
    Rule("kv-dtype", REFUSAL, "vLLM PR #41834", _kv_dtype, (_V,)),
    Rule("tp-garbled", WARNING, "vLLM #47528", _garbled, (_V,)),
    Rule("ep-dropped", WARNING, "InferenceX PR #1266", _ep_dropped, (_S,)),
    Rule("mega-moe-pp", NOTE, "vLLM PR #55520", _mega_with_pp, (_V,)),
    Rule("mega-moe-ep", NOTE, "vLLM 0.33.0 source, recipes 689d6b9 and 3b87742", _mega_needs_ep, (_V,)),
    Rule("aiter", NOTE, "InferenceX PR #2194", _aiter, (_V,)),
    Rule("repacked-experts", NOTE, "InferenceX #2128 and PR #2194, vLLM #45663", _repacked, (_V, _S)),
    Rule("replicated-flag", NOTE, "sglang #23602", _replicated_flag, (_S,)),
    Rule("below-block", NOTE, "vLLM #50012", _below_block, (_V,)),
    Rule("method-name", NOTE, "InferenceX PR #2305, vllm-ascend #9144", _method_name, (_S,)),
    Rule("pages", NOTE, "vLLM #54703 and #44376", _pages, (_V,)),
    Rule("slots", NOTE, "ATOM PR #1164, InferenceX PR #2345", _slots, (_A,)),
    Rule("index-scores", NOTE, "vLLM #45663", _index_logits, (_V,)),
    Rule("graph-memory", NOTE, "vLLM PR #41834, InferenceX #1222", _graph_memory, (_V, _S, _A)),
    Rule("h200-context", WARNING, "vLLM recipes #381", _h200_context, (_V,)),
    Rule("xpu", NOTE, "vLLM models/deepseek_v4/xpu", _xpu, (_V,)),
)
"""The registration of an engine's rule: one entry."""
