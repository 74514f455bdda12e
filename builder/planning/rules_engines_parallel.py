"""Rules of engines about the parallel axes: stages, tensor ranks, expert groups."""

from __future__ import annotations

from collections.abc import Iterator

from builder.planning.rules import NOTE, REFUSAL, WARNING, Rule, Said, Situation

BLOCKS = {"fp8": 128, "fp4": 32}
"""Values of a block of scales, by how the experts are stored."""

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
    hashed, first = at.config.model.num_hash_layers, at.partition[0]
    if at.config.parallel.pp > 1 and first < hashed:
        text = (
            f"stage 0 has {first} of the {hashed} layers that route by token id, and later stages are not given the "
            "ids (DeepSeek V4 hash MoE routing requires input_ids; NeMo falls back to scores without a word)"
        )
        yield Said("parallel.partition", list(at.partition), text, f"give stage 0 at least {hashed} layers")


def _mega_with_pp(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1 and at.sm >= 100:
        text = "--moe-backend deep_gemm_mega_moe reads the token ids on every stage, and later stages have none"
        yield Said("pp", at.config.parallel.pp, text, "use another moe backend with pp > 1")


def _mega_needs_ep(at: Situation) -> Iterator[Said]:
    if at.sm < 100 and at.config.hardware.vendor != "xpu":
        return
    fp4 = experts_of(at) == "fp4"
    if at.config.parallel.ep == 1 or not fp4 or at.sm >= 120 or at.config.hardware.vendor == "xpu":
        text = (
            f"mega-MoE needs expert parallel and FP4 experts, and neither sm_120 nor XPU has it; here ep="
            f"{at.config.parallel.ep}, experts {experts_of(at)}, {at.arch}"
        )
        yield Said("ep", at.config.parallel.ep, text, "use ep > 1, or another moe backend")


def _atom_pp(at: Situation) -> Iterator[Said]:
    if at.config.parallel.pp > 1 and on_atom(at):
        text = "DeepSeek-V4 has no stage split in this engine; its pipeline was validated on GLM-5.2 only"
        yield Said("pp", at.config.parallel.pp, text, "use pp=1 and tp=8")


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


def _expert_group(at: Situation) -> Iterator[Said]:
    parallel, experts = at.config.parallel, at.config.model.n_routed_experts
    group = parallel.dp * parallel.tp
    if parallel.ep > 1 and experts % group:
        redundant = -experts % group
        text = (
            f"the expert group is all dp·tp = {group} ranks, and {experts} experts do not divide by {group} "
            f"(n_physical_experts={experts} must be divisible by ep_size={group})"
        )
        works = f"use another dp or tp, or {redundant} redundant experts: {experts + redundant} = {group} x "
        yield Said("ep", parallel.ep, text, works + str((experts + redundant) // group))


def _expert_cut(at: Situation) -> Iterator[Said]:
    parallel = at.config.parallel
    group = parallel.dp * parallel.tp
    if at.engine != "vllm":
        return  # a note on every plan with replicas would be noise
    if parallel.ep not in (1, group):
        text = f"ep={parallel.ep} becomes {group}: the expert group is always all dp·tp ranks"
        yield Said("ep", parallel.ep, text, f"plan with ep={group}")
    elif parallel.ep == 1 and parallel.dp > 1:
        text = (
            f"ep=1 with dp={parallel.dp}: every expert is cut over all dp·tp = {group} ranks, builder keeps a copy in "
            "each replica"
        )
        yield Said("ep", 1, text, f"for copies start one server per replica; for one server plan with ep={group}")


def _expert_inner(at: Situation) -> Iterator[Said]:
    # With ep=1 one server cuts the experts over its replicas too, and nothing pads them.
    parallel, inner = at.config.parallel, at.config.model.moe_intermediate_size
    block = BLOCKS.get(experts_of(at), 1)

    def legal(dp: int) -> bool:
        group = dp * parallel.tp
        return inner % group == 0 and inner // group % block == 0

    if at.engine != "vllm" or parallel.ep > 1 or parallel.dp == 1 or legal(parallel.dp):
        return
    group = parallel.dp * parallel.tp
    share = f"{inner} / {group} = {inner // group} is no multiple of {block}, one block of scales"
    words = share if inner % group == 0 else f"moe_intermediate_size={inner} does not divide by {group}"
    text = (
        f"ep=1 with dp={parallel.dp} cuts every expert over all dp·tp = {group} ranks, and the routed experts' {words}"
    )
    sizes = (range(parallel.dp - 1, 0, -1), range(parallel.dp + 1, 4 * parallel.dp + 1))
    found = [f"dp={dp}" for dp in (next(filter(legal, tried), None) for tried in sizes) if dp]
    if at.config.model.n_routed_experts % group == 0:
        found.append(f"ep={group}")
    yield Said("dp", parallel.dp, text, f"use {' or '.join(found)}")


def on_atom(at: Situation) -> bool:
    """ATOM is meant, or could be."""
    # It runs on AMD only; without this its rules would be noise elsewhere.
    return at.config.hardware.vendor == "amd" or at.engine == "atom"


def experts_of(at: Situation) -> str:
    """How the experts are stored: fp4, fp8, or nothing where they are plain."""
    quantization = at.config.model.quantization_config
    return "" if quantization is None or at.config.runtime.weights != "native" else quantization.expert_dtype


_V, _S, _A = "vllm", "sglang", "atom"
PARALLEL_RULES = (
    Rule("pp-drafter", REFUSAL, "vLLM #52761, PR #53408", _drafter_with_pp, (_V,)),
    Rule("hash-layers", REFUSAL, "vLLM PR #55520, Megatron-Bridge PR #4131", _hash_layers, (_V, _S)),
    Rule("atom-pp", REFUSAL, "ATOM PR #1552", _atom_pp, (_A,)),
    Rule("expert-group", REFUSAL, "vLLM #52435", _expert_group, (_V,)),
    Rule("expert-inner", REFUSAL, "vLLM 0.33.0, fused_moe/config.py", _expert_inner, (_V,)),
    Rule("expert-cut", WARNING, "vLLM 0.33.0, expert layers", _expert_cut, (_V,)),
    Rule("tp-garbled", WARNING, "vLLM #47528", _garbled, (_V,)),
    Rule("ep-dropped", WARNING, "InferenceX PR #1266", _ep_dropped, (_S,)),
    Rule("mega-moe-pp", NOTE, "vLLM PR #55520", _mega_with_pp, (_V,)),
    Rule("mega-moe-ep", NOTE, "vLLM 0.33.0 source, recipes 689d6b9 and 3b87742", _mega_needs_ep, (_V,)),
    Rule("replicated-flag", NOTE, "sglang #23602", _replicated_flag, (_S,)),
)
"""The registration of an engine's rule about axes: one entry."""
