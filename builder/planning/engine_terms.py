"""What an engine adds to a rank's memory. Enters a plan only where ``plan.engine`` names the engine.

The formulas were read in vLLM 0.33.0 and SGLang 0.5.23, or follow from a published log; every term says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from builder.assembly.measure import CacheCost, footprint
from builder.assembly.sharding import Shards
from builder.components.base.spec import DTYPE_BYTES, CacheFormat, ComponentSpec, parts
from builder.components.experts.spec import ExpertsSpec
from builder.components.grouped_output.spec import GroupedLinearSpec
from builder.components.linear.spec import dtype_name
from builder.components.shared_expert.spec import SharedExpertSpec
from builder.schema.config import BuildConfig

ENGINE_WEIGHTS, ENGINE_COPIES, ENGINE_STATE = "engine_weights", "engine_copies", "engine_state"
ENGINE_WORKSPACE, MESSAGES = "engine_workspace", "messages"

MARLIN_PER_MILLE = 251
"""Expert bytes that Marlin adds on Hopper, measured: 125.65 GiB loaded of V4-Pro at TP8 where the files are 101.61."""

PADDED_INNER = 256
"""vLLM on AMD rounds the inner size of FP4 experts on a rank up to this."""

GATHERED_PREFILLS = 4
"""Prefills whose cache vLLM's FlashMLA path gathers at once (PREFILL_CHUNK_SIZE)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One line. exactness: exact (follows from shapes), measured (a published log), estimated (a reading of source)."""

    line: str
    nbytes: int
    exactness: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the terms ask of parts on one rank; of several parts together they are the sums.

    experts: bytes of FP4 experts; padding: what rounding their inner size up adds; wo_a: its values; wo_a_bytes: as
    stored, where it is quantized; shared_rest: bytes of the shared expert that the other tp ranks hold; open_rows: of a
    request.
    """

    experts: int = 0
    padding: int = 0
    wo_a: int = 0
    wo_a_bytes: int = 0
    shared_rest: int = 0
    open_rows: int = 0

    def __add__(self, other: Facts) -> Facts:
        return Facts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@lru_cache(maxsize=4096)
def facts_of(spec: ComponentSpec, shards: Shards, form: CacheFormat) -> Facts:
    """The facts of a part and of what is in it."""
    found = Facts()
    for _, part in parts(spec):
        if isinstance(part, ExpertsSpec) and part.form.kind == "fp4":
            size, inner = footprint(part, shards).nbytes, part.inner // (shards.tp if shards.ep == 1 else 1)
            padded = -(-inner // PADDED_INNER) * PADDED_INNER
            found += Facts(experts=size, padding=size * (padded - inner) // inner)
        elif isinstance(part, GroupedLinearSpec) and part.form.kind != "plain":
            held = footprint(part, shards)
            found += Facts(wo_a=held.values, wo_a_bytes=held.nbytes)
        elif isinstance(part, SharedExpertSpec):
            whole = footprint(part, replace(shards, shared_expert="replicated")).nbytes
            found += Facts(shared_rest=whole - footprint(part, shards).nbytes)
        rows = (row for row in part.cache(form) if row.name == "open")
        found += Facts(open_rows=sum(row.fixed * row.row_bytes for row in rows))
    return found


def named_engine(config: BuildConfig) -> str:
    """The engine whose terms and rules apply; builder is our own."""
    return config.plan.engine if config.plan is not None else "builder"


def engine_terms(config: BuildConfig, facts: Facts, stage: int) -> tuple[Term, ...]:
    """The lines that the named engine adds to a rank of a pipeline stage; none for our own."""
    return tuple(term for make in TERMS[named_engine(config)] for term in make(config, facts, stage) if term.nbytes)


def without_state(config: BuildConfig, facts: Facts, cost: CacheCost) -> CacheCost:
    """The cache of a request where the engine has its state ahead of time, in ``ENGINE_STATE``."""
    return replace(cost, fixed=cost.fixed - facts.open_rows) if named_engine(config) == "atom" else cost


def message_bytes_per_token(config: BuildConfig) -> int:
    """What one stage sends to the next for a token: hc_mult hidden states."""
    model = config.model
    return model.hc_mult * model.hidden_size * DTYPE_BYTES[dtype_name(config.runtime.dtype)]


def minimum_fraction(before: float, left: float, more: float = 0.0) -> float:
    """SGLang's least mem-fraction-static: 1 - what is left after loading / what was free before."""
    return 1 - (left - more) / before


def vllm_partition(layers: int, stages: int) -> list[int]:
    """vLLM's own split: equal shares, the remainder one each to the last stages but the very last."""
    share, rest = divmod(layers, stages)
    return [share + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages)]


def architecture(config: BuildConfig) -> str:
    """The device's architecture, ``sm_90`` or ``gfx950``; empty where it is not known."""
    device = config.hardware.devices.get(config.hardware.device)
    return device.arch if device else ""


def _messages(config: BuildConfig, _: Facts, stage: int) -> Iterator[Term]:
    if stage:
        size = config.runtime.max_num_batched_tokens * message_bytes_per_token(config)
        formula = "max_num_batched_tokens · hc_mult · hidden · bytes of runtime.dtype, on every stage after the first"
        yield Term(MESSAGES, size, "exact", formula, "sglang #23661")


def _padded_experts(config: BuildConfig, facts: Facts, _: int) -> Iterator[Term]:
    if config.hardware.vendor == "amd":
        formula = f"FP4 expert bytes · (padded / inner - 1): their inner size on a rank rounded up to {PADDED_INNER}"
        source = "vLLM fused_moe/oracle/mxfp4.py; InferenceX #2194: about 131 a GPU for V4-Pro at TP8"
        yield Term(ENGINE_WEIGHTS, facts.padding, "estimated", formula, source)


def _whole_shared_expert(config: BuildConfig, facts: Facts, _: int) -> Iterator[Term]:
    parallel = config.parallel
    if parallel.ep > 1 and parallel.tp > 1 and parallel.dp > 1:
        formula = "the shared expert whole on every rank, where ep, tp and dp are all more than 1"
        yield Term(ENGINE_WEIGHTS, facts.shared_rest, "exact", formula, "vLLM 0.33.0 use_sequence_parallel_moe")


def _plain_wo_a_beside(config: BuildConfig, facts: Facts, _: int) -> Iterator[Term]:
    if config.hardware.vendor == "amd":
        formula = "wo_a values · 2: dequantized to bfloat16 at the first step and kept beside the FP8 weight"
        yield Term(ENGINE_COPIES, 2 * facts.wo_a, "exact", formula, "vLLM 0.33.0 rocm_aiter_mla_sparse.py")


def _gathered(config: BuildConfig, _: Facts, __: int) -> Iterator[Term]:
    if architecture(config) not in ("sm_90", "gfx942"):
        return
    model, runtime = config.model, config.runtime
    rows = -(-runtime.max_model_len // model.csa_ratio) + model.sliding_window + runtime.max_num_batched_tokens
    formula = (
        f"{GATHERED_PREFILLS} · (max_model_len / ratio + window + max_num_batched_tokens) · head_dim · 2: the cache of "
        f"{GATHERED_PREFILLS} prefills gathered in bfloat16"
    )
    size = GATHERED_PREFILLS * rows * model.head_dim * 2
    yield Term(ENGINE_WORKSPACE, size, "estimated", formula, "vLLM 0.33.0 deepseek_v4/nvidia/flashmla.py")


def _marlin(config: BuildConfig, facts: Facts, _: int) -> Iterator[Term]:
    if architecture(config) == "sm_90":
        size = facts.experts * MARLIN_PER_MILLE // 1000
        formula = f"FP4 expert bytes · {MARLIN_PER_MILLE / 1000}: weights and scales repacked for Marlin"
        yield Term(ENGINE_WEIGHTS, size, "measured", formula, "InferenceX #2128: 125.65 GiB a GPU for V4-Pro at TP8")


def _plain_wo_a(_: BuildConfig, facts: Facts, __: int) -> Iterator[Term]:
    formula = "wo_a values · 2 - its stored bytes: dequantized to bfloat16 while loading"
    source = "vLLM 0.33.0 rocm_aiter_mla_sparse.py, which names ATOM"
    yield Term(ENGINE_WEIGHTS, 2 * facts.wo_a - facts.wo_a_bytes, "estimated", formula, source)


def _slots(config: BuildConfig, facts: Facts, _: int) -> Iterator[Term]:
    size = config.runtime.max_num_seqs * facts.open_rows
    formula = "max_num_seqs · the open compressor rows of a request, allocated at start outside the cache"
    yield Term(ENGINE_STATE, size, "exact", formula, "ATOM #1164: 17.85 MiB a slot for V4-Pro")


TERMS: dict[str, tuple[Callable[[BuildConfig, Facts, int], Iterator[Term]], ...]] = {
    "builder": (),
    "vllm": (_padded_experts, _whole_shared_expert, _plain_wo_a_beside, _gathered, _messages),
    "sglang": (_marlin, _messages),
    "atom": (_plain_wo_a, _slots),
}
"""The registration of a term: one function."""
