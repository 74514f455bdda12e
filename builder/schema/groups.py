"""The small groups: kernels, cache, runtime, and what a task or a report is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.errors import Problem
from builder.schema.fields import field_problems, setting
from builder.schema.model import ModelConfig

KERNEL_IMPLEMENTATIONS = ("reference", "compiled")
CACHE_LAYOUTS = ("plain", "fp8", "fp8_fp4")
COMPUTE_DTYPES = ("bfloat16", "float32", "float64")
AUTO = "auto"
DEFAULT_MAX_MODEL_LEN = 131_072


@dataclass(slots=True, kw_only=True)
class KernelsConfig:
    """Which implementation each operation uses. ``reference`` is plain and always there."""

    linear: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    experts: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    norm: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    rotary: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    hyper_connections: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    attention: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    compressor: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    indexer: str = setting(choices=KERNEL_IMPLEMENTATIONS)
    router: str = setting(choices=KERNEL_IMPLEMENTATIONS)


@dataclass(slots=True, kw_only=True)
class CacheConfig:
    """How cache entries are stored; the layout owns the rounding."""

    layout: str = setting(choices=CACHE_LAYOUTS)


@dataclass(slots=True, kw_only=True)
class RuntimeConfig:
    """Sizes of a step and shares of the memory. ``auto`` is resolved once, when the configuration is converted."""

    dtype: str = setting(choices=COMPUTE_DTYPES)
    weights: str = setting(choices=("native", "bfloat16", "float32"))
    max_num_batched_tokens: int = setting(least=1)
    max_num_seqs: int = setting(least=1)
    max_model_len: Any = setting(least=1)
    memory_fraction: float = setting(above=0, most=1)
    reserve_bytes: int = setting(least=0)
    graph_bytes: int = setting(0, least=0)
    communication_bytes: int = setting(0, least=0)
    other_bytes: int = setting(0, least=0)


def runtime_problems(runtime: RuntimeConfig, model: ModelConfig) -> Iterator[Problem]:
    """Ranges, and the model's own limit on the length."""
    found = list(field_problems(runtime, "runtime"))
    yield from found
    if any(problem.key == "runtime.max_model_len" for problem in found):
        return
    length, most = runtime.max_model_len, model.max_position_embeddings
    if not isinstance(length, int) or isinstance(length, bool):
        yield Problem("runtime.max_model_len", length, "is no length", f"use auto, or 1 to {most}")
    elif length > most:
        yield Problem(
            "runtime.max_model_len",
            length,
            f"{model.name} has max_position_embeddings={most}",
            f"use at most {most}",
        )


def cache_problems(cache: CacheConfig, model: ModelConfig, prefix: str) -> Iterator[Problem]:
    """The Hadamard rotation of fp8_fp4 exists for powers of two."""
    width = model.index_head_dim
    if cache.layout == "fp8_fp4" and width & (width - 1):
        yield Problem(
            "cache",
            "fp8_fp4",
            f"the Hadamard rotation of the indexer keys needs a power of two, {prefix}.index_head_dim={width}",
            "use cache=fp8",
        )


@dataclass(slots=True, kw_only=True)
class GenerateConfig:
    """Keys of task=generate."""

    max_new_tokens: int = setting(least=1)
    temperature: float = setting(least=0)
    top_p: float = setting(above=0, most=1)
    ignore_eos: bool = setting()
    stream: bool = setting()


@dataclass(slots=True, kw_only=True)
class VerifyConfig:
    """Keys of task=verify."""

    against: str = setting(choices=("expected", "transformers"))
    tolerance: float = setting(above=0)


@dataclass(slots=True, kw_only=True)
class ConvertConfig:
    """Keys of task=convert."""

    to: str = setting(choices=("official", "transformers", "transformers_fused"))
    weights: str = setting(choices=("native", "bfloat16", "float32"))


@dataclass(slots=True, kw_only=True)
class SearchConfig:
    """Keys of task=search: the question, its limits, and lists of what each axis may be."""

    ask: str = setting("deployments", choices=("deployments", "memory_fraction", "devices", "context"))
    objective: str = setting("tokens", choices=("tokens", "requests", "devices", "headroom"))
    gpus: int | None = setting(None, least=1, most=65_536)
    max_model_len: int | None = setting(None, least=1)
    requests: int | None = setting(None, least=1)
    top: int = setting(10, least=1, most=1_000)
    devices: list[str] | None = None
    counts: list[int] | None = None
    pp: list[int] | None = None
    tp: list[int] | None = None
    ep: list[int] | None = None
    dp: list[int] | None = None
    shared_expert: list[str] | None = None
    cache: list[str] | None = None
    spec: list[str] | None = None
    num_speculative_tokens: list[int] | None = None
    max_num_batched_tokens: list[int] | None = None
    max_num_seqs: list[int] | None = None


@dataclass(slots=True, kw_only=True)
class BenchConfig:
    """Keys of task=bench."""

    what: str = setting(choices=("forward", "stash"))


@dataclass(slots=True, kw_only=True)
class ExportConfig:
    """Keys of task=export. what: what people see; a JSON document has both."""

    engine: str = setting(choices=("vllm", "sglang"))
    what: str = setting(choices=("command", "yaml"))


@dataclass(slots=True, kw_only=True)
class PlanConfig:
    """Keys of every task that plans: an engine's own terms enter the bytes only when it is named."""

    engine: str = setting(choices=("builder", "vllm", "sglang", "atom"))


@dataclass(slots=True, kw_only=True)
class ReportConfig:
    """Keys of every task that plans: what to draw, and where to."""

    html: str | None = setting(None)
    plot: str | None = setting(None, choices=("memory", "capacity", "sweep"))
