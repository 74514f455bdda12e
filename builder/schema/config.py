"""The root of a configuration, and everything that is checked before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.errors import Problem
from builder.schema.fields import field_problems, setting
from builder.schema.groups import (
    BenchConfig,
    CacheConfig,
    ConvertConfig,
    ExportConfig,
    GenerateConfig,
    KernelsConfig,
    PlanConfig,
    ReportConfig,
    RuntimeConfig,
    SearchConfig,
    VerifyConfig,
    cache_problems,
    runtime_problems,
)
from builder.schema.hardware import HardwareConfig, hardware_problems
from builder.schema.model import ModelConfig, model_problems
from builder.schema.parallel import ParallelConfig, parallel_problems
from builder.schema.spec import SpecConfig, spec_problems

TASKS = {
    "build": "builder.planning.tasks:run_build",
    "plan": "builder.planning.tasks:run_plan",
    "verify": "builder.runtime.tasks:run_verify",
    "generate": "builder.runtime.tasks:run_generate",
    "convert": "builder.runtime.conversion:run_convert",
    "bench": "builder.runtime.tasks:run_bench",
    "search": "builder.planning.search:run_search",
    "export": "builder.engines.exporting:run_export",
    "import": "builder.engines.importing:run_import",
    "reconcile": "builder.engines.reconcile:run_reconcile",
}
"""Every task, with its function from a BuildConfig to an Outcome; empty: known, but not part of this version yet."""

COMPUTING_TASKS = ("verify", "generate", "convert", "bench")
"""Tasks that run the model here: without ``hardware=`` they use what this machine has."""

MOST_SEED = (1 << 62) - 1

OUTPUTS = ("table", "json")


@dataclass(slots=True, kw_only=True)
class BuildConfig:
    """One configuration, resolved: no ``auto`` is left in it and no shorthand (``pp`` is ``parallel.pp``)."""

    model: ModelConfig
    hardware: HardwareConfig
    kernels: KernelsConfig
    parallel: ParallelConfig
    spec: SpecConfig
    cache: CacheConfig
    runtime: RuntimeConfig
    draft: ModelConfig | None = None

    task: str = setting(choices=tuple(TASKS))
    checkpoint: str | None = None
    out: str | None = None
    output: str = setting("table", choices=OUTPUTS)
    seed: int = setting(0, least=0)
    prompt: str | None = None
    prompt_ids: Any = None
    prompt_file: str | None = None
    command: str | None = None
    log: str | None = None

    generate: GenerateConfig | None = None
    verify: VerifyConfig | None = None
    convert: ConvertConfig | None = None
    search: SearchConfig | None = None
    bench: BenchConfig | None = None
    export: ExportConfig | None = None
    plan: PlanConfig | None = None
    report: ReportConfig | None = None


def problems(config: BuildConfig) -> Iterator[Problem]:
    """Every problem that the values alone show; what the tensors say (divisibility) is ``assembly.sharding``'s."""
    model = list(model_problems(config.model, "model"))
    draft = [] if config.draft is None else list(model_problems(config.draft, "draft"))
    yield from model
    yield from draft
    yield from hardware_problems(config.hardware)
    yield from field_problems(config.kernels, "kernels")
    yield from field_problems(config.cache, "cache")
    for name in ("generate", "verify", "convert", "search", "bench", "export", "plan", "report"):
        node = getattr(config, name)
        if node is not None:
            yield from field_problems(node, name)
    yield from _top_level_problems(config)
    if model or draft:
        return
    yield from runtime_problems(config.runtime, config.model)
    yield from parallel_problems(config.parallel, config.model, config.plan.engine if config.plan else "builder")
    yield from spec_problems(config.spec, config.model, config.draft)
    yield from cache_problems(config.cache, config.model, "model")
    if config.draft is not None:
        yield from cache_problems(config.cache, config.draft, "draft")


def _top_level_problems(config: BuildConfig) -> Iterator[Problem]:
    if config.output not in OUTPUTS:
        yield Problem("output", config.output, "is not known", f"use {' or '.join(OUTPUTS)}")
    if not 0 <= config.seed <= MOST_SEED:
        works = "use at least 0" if config.seed < 0 else f"use at most {MOST_SEED:,}"
        yield Problem("seed", config.seed, "is out of range", works)


def warnings(config: BuildConfig) -> Iterator[str]:
    """What works, but probably not as meant."""
    block = config.model.dspark_block_size
    if config.spec.method == "dspark" and block is not None and config.spec.drafts > block:
        yield (
            f"spec.num_speculative_tokens={config.spec.drafts} is more than the release's dspark_block_size={block}: "
            f"tokens beyond the block are hardly ever accepted; use at most {block}"
        )
