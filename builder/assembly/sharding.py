"""How a declared tensor is divided among ranks, and which divisions are legal.

A declaration says what a dimension counts; this module alone knows which parallel axis divides that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from builder.components.base.spec import Axis, ComponentSpec, Split, Tensor, walk
from builder.components.stage.spec import StageSpec
from builder.errors import Problem
from builder.schema.config import BuildConfig
from builder.schema.parallel import ParallelConfig


@dataclass(frozen=True, slots=True)
class Shards:
    """A rank's place among those that share a stage. One object describes one way of cutting tensors."""

    tp: int = 1
    tp_rank: int = 0
    ep: int = 1
    ep_rank: int = 0
    shared_expert: str = "sharded"

    def ways(self, split: Split) -> tuple[int, int]:
        """Into how many parts a dimension is cut, and which of them is this rank's."""
        match split.axis:
            case Axis.EXPERTS:
                return self.ep, self.ep_rank
            case Axis.EXPERT_INNER if self.ep > 1:
                return 1, 0
            case Axis.SHARED_INNER if self.shared_expert == "replicated":
                return 1, 0
            case Axis.INDEX_HEADS if split.count % self.tp:
                return 1, 0
            case _:
                return self.tp, self.tp_rank


UNSPLIT = Shards()


def shards_of(parallel: ParallelConfig, dp_rank: int, tp_rank: int) -> Shards:
    """The cut of one rank. ep rank = (dp * tp_size + tp) mod ep: neighbours form a group."""
    ep_rank = (dp_rank * parallel.tp + tp_rank) % parallel.ep
    return Shards(parallel.tp, tp_rank, parallel.ep, ep_rank, parallel.shared_expert)


def local_ranges(tensor: Tensor, shards: Shards) -> tuple[tuple[int, int], ...]:
    """For every dimension, the first element of the rank's share and the one after its last."""
    ranges = [(0, size) for size in tensor.shape]
    for split in tensor.splits:
        ways, index = shards.ways(split)
        share = -(-tensor.shape[split.dim] // ways)
        size = tensor.shape[split.dim]
        ranges[split.dim] = min(index * share, size), min((index + 1) * share, size)
    return tuple(ranges)


def cut_axes(spec: ComponentSpec, shards: Shards) -> set[Axis]:
    """What a rank has only a share of, in a part and all that is in it."""
    splits = {split for one in walk(spec) for split in one.tensor.splits}
    return {split.axis for split in splits if shards.ways(split)[0] > 1}


def local_shape(tensor: Tensor, shards: Shards) -> tuple[int, ...]:
    """The shape of the rank's share."""
    if not tensor.splits:
        return tensor.shape
    return tuple(stop - start for start, stop in local_ranges(tensor, shards))


@dataclass(frozen=True, slots=True)
class _Rule:
    """One division that a model asks for: ``size`` elements that hold ``split.count`` whole things."""

    split: Split
    size: int
    prefix: str

    def fault(self, shards: Shards) -> str:
        """Why the cut is illegal, or nothing."""
        ways, _ = shards.ways(self.split)
        count, block = self.split.count, self.split.block
        # Routed and shared experts have one width in the configuration: the owner tells their lines apart.
        name = f"{_OWNER.get(self.split.axis, '')}{self.prefix}{self.split.key}"
        if ways == 1:
            return ""
        if self.split.axis is Axis.VOCABULARY:
            share = -(-count // ways)
            return (
                f"{name}={count} leaves the last of {ways} ranks without a row" if share * (ways - 1) >= count else ""
            )
        if count % ways:
            return f"{name}={count} does not divide by {ways}"
        if self.size // ways % block:
            unit = f"{name}{_WIDTHS.get(self.split.key, '')} {self.size} / {ways} = {self.size // ways}"
            return f"{unit} is no multiple of {block}, one block of scales"
        return ""


_WIDTHS = {
    "num_attention_heads": "·head_dim",
    "o_groups": "·o_lora_rank",
    "index_n_heads": "·index_head_dim",
}
"""What each of the things that are divided is wide."""

_OWNER = {Axis.SHARED_INNER: "the shared expert's ", Axis.EXPERT_INNER: "the routed experts' "}


def rules_of(stage: StageSpec) -> set[_Rule]:
    """The divisions that an unsplit model and its drafter ask for, each once."""
    rules: set[_Rule] = set()
    # Equal layers are one declaration: look at each declaration once.
    for spec, name in {spec: name for name, spec in stage.members}.items():
        pending = [("draft.", child) for _, child in spec.children()] if name == "draft" else [("", spec)]
        for prefix, part in dict.fromkeys(pending):
            rules |= {
                _Rule(split, one.tensor.shape[split.dim], prefix)
                for one in walk(part)
                if one.tensor.values
                for split in one.tensor.splits
            }
    return rules


def problems(config: BuildConfig, rules: Iterable[_Rule]) -> Iterator[Problem]:
    """Every division by tp (or, of a draft, by ep) that does not work out, each with the nearest value that does."""
    rules = list(rules)
    parallel = config.parallel
    shards = shards_of(parallel, 0, 0)
    faults = {(fault, rule.split) for rule in rules if (fault := rule.fault(shards))}
    found = sorted({(split.axis is Axis.EXPERTS, fault, _seen(split, parallel.tp)) for fault, split in faults})
    for by_ep, fault, seen in found:
        key, value = ("ep", parallel.ep) if by_ep else ("tp", parallel.tp)
        yield Problem(key, value, fault, _works(rules, parallel, key) + seen)


def _seen(split: Split, tp: int) -> str:
    """Where engines met the same arithmetic."""
    if split.axis is Axis.SHARED_INNER:
        return " (seen in vLLM #40955 and sglang #23602)"
    if split.key == "o_groups" and split.count % tp:
        return f" (vLLM 0.33.0 and SGLang 0.5.23 take {split.count} // {tp} = {split.count // tp} groups unasked)"
    return ""


def _works(rules: list[_Rule], parallel: ParallelConfig, key: str) -> str:
    def legal(size: int, shared_expert: str) -> bool:
        tp, ep = (size, parallel.ep) if key == "tp" else (parallel.tp, size)
        if parallel.dp * tp % ep or (tp % ep and ep % tp):
            return False
        return not any(rule.fault(Shards(tp, 0, ep, 0, shared_expert)) for rule in rules)

    now = parallel.tp if key == "tp" else parallel.ep
    lower = next((n for n in range(now - 1, 0, -1) if legal(n, parallel.shared_expert)), None)
    higher = next((n for n in range(now + 1, 4 * now + 1) if legal(n, parallel.shared_expert)), None)
    found = [f"{key}={n}" for n in (lower, higher) if n]
    if parallel.shared_expert == "sharded" and legal(now, "replicated"):
        found.append("parallel.shared_expert=replicated")
    return f"use {' or '.join(found)}" if found else f"no {key} works with the rest as it is"


def values_of(tensor: Tensor, shards: Shards) -> int:
    """Logical parameter values of the rank's share."""
    return math.prod(local_shape(tensor, shards)) * tensor.values if tensor.values else 0
