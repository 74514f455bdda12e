"""What an engine adds to a rank's memory. Enters a plan only where ``plan.engine`` names the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from builder.assembly.measure import CacheCost, footprint
from builder.assembly.sharding import Shards
from builder.components.base.spec import DTYPE_BYTES, CacheFormat, parts
from builder.components.experts.spec import ExpertsSpec
from builder.components.linear.spec import dtype_name
from builder.components.stage.spec import StageSpec
from builder.schema.config import BuildConfig

ENGINE_WEIGHTS, ENGINE_STATE, MESSAGES = "engine_weights", "engine_state", "messages"

MARLIN_PER_MILLE = 251
"""Expert bytes that Marlin adds on Hopper, measured: 125.65 GiB loaded of V4-Pro at TP8 where the files are 101.61."""


@dataclass(frozen=True, slots=True)
class Term:
    """One line. exactness: exact (follows from shapes), measured (a published log), estimated (a reading of source)."""

    line: str
    nbytes: int
    exactness: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Rank:
    """What a term looks at."""

    config: BuildConfig
    stage: StageSpec
    shards: Shards
    form: CacheFormat
    pp: int

    @property
    def arch(self) -> str:
        """The device's architecture; empty where it is not known."""
        device = self.config.hardware.devices.get(self.config.hardware.device)
        return device.arch if device else ""


def named_engine(config: BuildConfig) -> str:
    """The engine whose terms and rules apply; builder is our own."""
    return config.plan.engine if config.plan is not None else "builder"


def engine_terms(rank: Rank) -> tuple[Term, ...]:
    """The lines that the named engine adds to a rank; none for our own."""
    return tuple(term for make in TERMS.get(named_engine(rank.config), ()) for term in make(rank) if term.nbytes)


def without_state(rank: Rank, cost: CacheCost) -> CacheCost:
    """The cache of a request where the engine has its state ahead of time, in ``ENGINE_STATE``."""
    if named_engine(rank.config) != "atom":
        return cost
    return replace(cost, fixed=cost.fixed - open_rows(rank.stage, rank.form))


def message_bytes_per_token(config: BuildConfig) -> int:
    """What one stage sends to the next for a token: hc_mult hidden states."""
    model = config.model
    return model.hc_mult * model.hidden_size * DTYPE_BYTES[dtype_name(config.runtime.dtype)]


def open_rows(stage: StageSpec, form: CacheFormat) -> int:
    """Bytes of a request's open compressor rows on a stage."""
    found = (rows for _, part in parts(stage) for rows in part.cache(form))
    return sum(rows.fixed * rows.row_bytes for rows in found if rows.name == "open")


def minimum_fraction(before: float, left: float, more: float = 0.0) -> float:
    """SGLang's least mem-fraction-static: 1 - what is left after loading / what was free before."""
    return 1 - (left - more) / before


def vllm_partition(layers: int, stages: int) -> list[int]:
    """vLLM's own split: equal shares, the remainder one each to the last stages but the very last."""
    share, rest = divmod(layers, stages)
    return [share + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages)]


def _expert_bytes(rank: Rank) -> int:
    return sum(footprint(part, rank.shards).nbytes for _, part in parts(rank.stage) if isinstance(part, ExpertsSpec))


def _messages(rank: Rank) -> Iterator[Term]:
    if rank.pp:
        size = rank.config.runtime.max_num_batched_tokens * message_bytes_per_token(rank.config)
        formula = "max_num_batched_tokens · hc_mult · hidden · bytes of runtime.dtype, on every stage after the first"
        yield Term(MESSAGES, size, "exact", formula, "sglang #23661")


def _padded_experts(rank: Rank) -> Iterator[Term]:
    config = rank.config
    quantization = config.model.quantization_config
    if config.hardware.vendor != "amd" or quantization is None or quantization.expert_dtype != "fp4":
        return
    inner = config.model.moe_intermediate_size // (config.parallel.tp if config.parallel.ep == 1 else 1)
    padded = -(-inner // 256) * 256
    formula = f"expert bytes · ({padded} / {inner} - 1): the experts' inner size rounded up to 256"
    size = _expert_bytes(rank) * (padded - inner) // inner
    yield Term(ENGINE_WEIGHTS, size, "estimated", formula, "InferenceX #2194: about 131 a GPU for V4-Pro at TP8")


def _marlin(rank: Rank) -> Iterator[Term]:
    quantization = rank.config.model.quantization_config
    if rank.arch != "sm_90" or quantization is None or quantization.expert_dtype != "fp4":
        return
    size = _expert_bytes(rank) * MARLIN_PER_MILLE // 1000
    formula = f"expert bytes · {MARLIN_PER_MILLE / 1000}: FP4 experts repacked for Marlin"
    yield Term(ENGINE_WEIGHTS, size, "measured", formula, "InferenceX #2128: 125.65 GiB a GPU for V4-Pro at TP8")


def _slots(rank: Rank) -> Iterator[Term]:
    size = rank.config.runtime.max_num_seqs * open_rows(rank.stage, rank.form)
    formula = "max_num_seqs · the open compressor rows of a request, allocated at start outside the cache"
    yield Term(ENGINE_STATE, size, "exact", formula, "ATOM #1164: 17.85 MiB a slot for V4-Pro")


TERMS: dict[str, tuple[Callable[[Rank], Iterator[Term]], ...]] = {
    "builder": (),
    "vllm": (_padded_experts, _messages),
    "sglang": (_marlin, _messages),
    "atom": (_slots,),
}
"""The registration of a term: one function."""
