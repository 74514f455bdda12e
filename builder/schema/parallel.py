"""The parallel group: how many ranks, and what each axis divides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from builder.errors import Problem
from builder.schema.fields import field_problems, setting
from builder.schema.model import ModelConfig

AXES = ("pp", "tp", "ep", "dp")
PARTITION_RULES = ("auto", "even")

MOST_RANKS = 65_536


@dataclass(slots=True, kw_only=True)
class ParallelConfig:
    """Rank = ((pp * dp_size) + dp) * tp_size + tp, all from 0; world = pp * dp * tp; ep regroups dp and tp.

    microbatch_tokens: most tokens of a pass with pp > 1, so that a prompt keeps every stage busy.
    silence_seconds: a rank that shows no life for so long is given up, and the job with it.
    message_seconds: how long a rank waits for a message of one that lives (its computation is part of that).
    """

    pp: int = setting(least=1, most=MOST_RANKS)
    tp: int = setting(least=1, most=MOST_RANKS)
    ep: int = setting(least=1, most=MOST_RANKS)
    dp: int = setting(least=1, most=MOST_RANKS)
    partition: Any = setting()
    shared_expert: str = setting(choices=("sharded", "replicated"))
    microbatch_tokens: int = setting(512, least=1)
    silence_seconds: float = setting(30.0, above=0)
    message_seconds: float = setting(1800.0, above=0)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.pp * self.dp * self.tp


def parallel_problems(parallel: ParallelConfig, model: ModelConfig, engine: str = "builder") -> Iterator[Problem]:
    """Axes against each other and against the model's layers and experts; the advice is for the named engine."""
    own = list(field_problems(parallel, "parallel"))
    yield from own
    if own:
        return
    layers = model.num_hidden_layers
    if parallel.pp > layers:
        yield Problem(
            "pp",
            parallel.pp,
            f"{model.name} has {layers} layers, and every stage needs at least one",
            f"use pp=1 to pp={layers}",
        )
    if parallel.world_size > MOST_RANKS:
        yield Problem(
            "pp·dp·tp",
            parallel.world_size,
            f"a plan of more than {MOST_RANKS:,} ranks is a slip of the keyboard",
            f"keep pp·dp·tp at {MOST_RANKS:,} or less",
        )
    yield from _partition_problems(parallel, layers)
    yield from _expert_problems(parallel, model, engine)


def _vllm_experts(parallel: ParallelConfig, model: ModelConfig) -> str:
    # Its expert group is all dp·tp ranks, and without one every expert is cut over as many.
    dp, tp, experts = parallel.dp, parallel.tp, model.n_routed_experts
    if experts % (dp * tp) == 0:
        return f"with dp={dp} tp={tp} use ep={dp * tp}, vLLM's expert group"
    sizes = (range(dp - 1, 0, -1), range(dp + 1, 4 * dp + 1))
    found = [next((n for n in tried if experts % (n * tp) == 0), 0) for tried in sizes]
    words = " or ".join(f"dp={n} ep={n * tp}" for n in found if n)
    return f"with tp={tp} use {words}: vLLM's expert group is all dp·tp ranks" if words else "use another tp"


def _partition_problems(parallel: ParallelConfig, layers: int) -> Iterator[Problem]:
    partition = parallel.partition
    if isinstance(partition, str) and partition in PARTITION_RULES:
        return
    rules = f"use {' or '.join(PARTITION_RULES)}, or a list of {parallel.pp} layer counts that sum to {layers}"
    sizes: list[Any] = [*cast("list[Any]", partition)] if isinstance(partition, list) else []
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        yield Problem("parallel.partition", f"{parallel.partition}", "is no partition", rules)
    elif any(size < 1 for size in sizes):
        yield Problem("parallel.partition", sizes, "every stage needs at least one layer", rules)
    elif len(sizes) != parallel.pp:
        yield Problem("parallel.partition", sizes, f"has {len(sizes)} stages, but pp={parallel.pp}", rules)
    elif sum(sizes) != layers:
        yield Problem("parallel.partition", sizes, f"sums to {sum(sizes)}, not to the model's {layers} layers", rules)


def _expert_problems(parallel: ParallelConfig, model: ModelConfig, engine: str) -> Iterator[Problem]:
    ep, tp, group = parallel.ep, parallel.tp, parallel.dp * parallel.tp
    legal = [
        n
        for n in range(1, group + 1)
        if group % n == 0 and model.n_routed_experts % n == 0 and (tp % n == 0 or n % tp == 0)
    ]
    works = f"with dp={parallel.dp} tp={tp} use ep={' or '.join(map(str, legal))}"
    if engine == "vllm":
        works = _vllm_experts(parallel, model)
    if model.n_routed_experts % ep:
        redundant = -model.n_routed_experts % ep
        total = model.n_routed_experts + redundant
        yield Problem(
            "ep",
            ep,
            f"{model.n_routed_experts} experts do not divide by {ep} "
            f"({redundant} redundant experts would make {total} = {ep} x {total // ep})",
            f"{works} (seen in vLLM #52435)",
        )
    if group % ep:
        yield Problem("ep", ep, f"does not divide dp·tp = {parallel.dp}·{tp} = {group}", works)
    elif tp % ep and ep % tp:
        yield Problem("ep", ep, f"neither divides tp={tp} nor is a multiple of it", works)
