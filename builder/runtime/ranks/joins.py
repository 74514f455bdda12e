"""Completes the outputs of parts whose tensors are divided, from outside: a part's own forward names no rank.

A declaration says which dimension counts what (``Axis``) and how a division is made good (``Join``). Where the axis
is divided on this rank, the part's module gets a hook here; elsewhere it is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from builder.assembly.sharding import Shards, cut_axes, local_ranges
from builder.components.base.module import Component
from builder.components.base.spec import ComponentSpec, Join
from builder.components.experts.module import Experts
from builder.components.stage.module import Stage
from builder.kernels.operations import IndexerOps
from builder.kernels.reference.indexer import pick_by
from builder.runtime.ranks.exchange import Exchange
from builder.runtime.ranks.groups import Group

Part = Component[ComponentSpec]


@dataclass(frozen=True)
class Joiner:
    """The groups of one rank, and what is divided among them. exchange: None where no experts are spread."""

    shards: Shards
    tp: Group | None
    exchange: Exchange | None

    def join(self, stage: Stage) -> int:
        """Hook every part of a stage that needs it; returns how many that are."""
        hooked = 0
        for module in stage.modules():
            if isinstance(module, Component):
                part = cast("Part", module)
                for axis, how in part.spec.joins():
                    if axis in cut_axes(part.spec, self.shards):
                        _JOINS[how](part, self)
                        hooked += 1
        return hooked

    @property
    def tensors(self) -> Group:
        """The tp group, where something is divided by tp."""
        assert self.tp is not None, "what is divided by tp has a group"
        return self.tp


def _add(part: Part, joiner: Joiner) -> None:
    group = joiner.tensors
    _after(part, group.add)


def _concatenate(part: Part, joiner: Joiner) -> None:
    # Rows of a table of outputs are divided evenly but for the last rank.
    group, tensor = joiner.tensors, part.spec.tensors()[0]
    ranges = [local_ranges(tensor, replace(joiner.shards, tp_rank=rank))[0] for rank in range(group.size)]
    sizes = [stop - start for start, stop in ranges]
    _after(part, lambda output: group.concatenate(output, sizes))


def _look_up(part: Part, joiner: Joiner) -> None:
    # Ids of other ranks' rows are looked up as row 0, and count nothing.
    group = joiner.tensors
    first, last = local_ranges(part.spec.tensors()[0], joiner.shards)[0]
    whole = part.forward

    def forward(ids: Tensor) -> Tensor:
        here = (ids >= first) & (ids < last)
        found = whole((ids - first).where(here, 0))
        return group.add(found.masked_fill(~here.unsqueeze(-1), 0))

    part.forward = forward


def _add_scores(part: Part, joiner: Joiner) -> None:
    part.ops = replace(part.ops, indexer=_SharedScores(part.ops.indexer, joiner.tensors))


def _exchange(part: Part, joiner: Joiner) -> None:
    assert joiner.exchange is not None, "spread experts have a group"
    joiner.exchange.spread(cast("Experts", part))


_JOINS: dict[Join, Callable[[Part, Joiner], None]] = {
    Join.SUM: _add,
    Join.CONCATENATE: _concatenate,
    Join.LOOK_UP: _look_up,
    Join.SCORES: _add_scores,
    Join.EXCHANGE: _exchange,
}


def _after(part: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    def hook(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        del module, given
        return change(output)

    part.register_forward_hook(hook)


@dataclass(frozen=True)
class _SharedScores:
    # Each rank scores with its own heads; the sums are the same everywhere, and so is the choice.
    ops: IndexerOps
    group: Group

    def scores(self, queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        return self.group.add(self.ops.scores(queries, keys, weights))

    def pick(self, queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor:
        return pick_by(self.scores, queries, keys, weights, ready, count)
