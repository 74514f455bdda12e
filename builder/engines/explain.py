"""Why a log and a plan differ, where a rule is known."""

from __future__ import annotations

from builder.engines.command import packed_fp4
from builder.planning.document import RankPlan
from builder.schema.config import BuildConfig

_GB = 10**9 / (1 << 30)


def loaded(config: BuildConfig, size: int, logged: float, *, agrees: bool) -> str:
    """Weights: equal, or what made them larger or smaller."""
    if not size:
        return "the configuration has no such part; the log loads one: name the method with spec="
    ratio = logged / size
    if agrees:
        return "as stored, and what the engine adds while loading"
    if packed_fp4(config.model) and 1.18 <= ratio <= 1.32:
        return (
            f"{100 * (ratio - 1):.0f} % more than stored: the Marlin runner repacks FP4 experts, about +25 % "
            "(InferenceX issue 2128)"
        )
    if abs(ratio / _GB - 1) < 0.01 or abs(ratio * _GB - 1) < 0.01:
        return "the factor 1.074 of GB (10^9) against GiB (2^30): one side was read in the other's unit"
    if 1.7 <= ratio <= 2.3:
        return "about twice: the engine dequantized the weights, or its tp or ep is half of the configuration's"
    if 0.4 <= ratio <= 0.6:
        return "about half: the engine's tp, pp or ep is twice the configuration's"
    if ratio > 1:
        return "no rule is known; compare tp, ep, pp, shared experts and the expert backend with the command"
    return "less than the checkpoint holds for this rank: the model, tp, ep or pp is another one"


def cache_memory(config: BuildConfig, rank: RankPlan, available: float) -> str:
    """What is left for the cache."""
    if rank.free is None:
        return "no device memory in the configuration: name hardware= and hardware.device="
    words = (
        "the plan's free_bytes: fraction of the memory less weights and estimated activations; the engine also takes "
        "its graphs, communication buffers and the driver's share"
    )
    if available > rank.free and config.runtime.memory_fraction < 1:
        return f"{words}; here the log has more: its peak of activations is below the estimate"
    return words


def graphs(engine: str) -> str:
    """Captured graphs."""
    if engine == "vllm":
        return (
            "vLLM since 0.21 takes its estimate from the cache unless VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 "
            "(vLLM pull request 41834)"
        )
    return "captured after the pools, from the memory outside --mem-fraction-static"


def concurrency(length: int) -> str:
    """Requests of one length."""
    return f"cache memory over the cache of one request of {length:,} tokens, on the fullest rank"


def request(length: int, planned: int, logged: float) -> str:
    """The cache of one request."""
    if abs(logged / planned - 1) <= 0.05:
        return f"what a request of {length:,} tokens takes, its fixed part included"
    if logged > planned:
        return (
            "vLLM reserves more for a request than its entries: whole blocks, pages of one size for all groups, and "
            "for windows and open compressor rows as many tokens as are in flight (vLLM issue 54703)"
        )
    return "less than the entries of such a request: another cache layout, or the log's length is not this one"


def tokens(engine: str, length: int) -> str:
    """A number of tokens."""
    if engine == "vllm":
        return (
            f"vLLM prints concurrency x {length:,}, not a capacity: with a fixed part per request, shorter requests "
            "hold fewer tokens (vLLM issue 51041)"
        )
    return (
        "slots of SGLang's full pool, each with its share of the window pool (--swa-full-tokens-ratio 0.1); the plan's "
        "are by the same formulas, with its own share of the memory"
    )


def longest() -> str:
    """The longest request."""
    return "what one request alone can reach; the engine's reserve per request makes its figure smaller"


def sglang_fraction() -> str:
    """SGLang's least --mem-fraction-static."""
    return "1 - available / before, SGLang's own rule: below it the loaded weights leave nothing for the cache"
