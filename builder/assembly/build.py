"""From the plan of stages to modules: a rank's parts, and only those."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from builder.assembly.sharding import Shards, local_ranges, local_shape
from builder.assembly.stages import Assembly, RankPlace, assemble
from builder.components.base.module import TORCH_DTYPES, Component, Construction
from builder.components.base.spec import Declared, walk
from builder.components.stage.module import Stage
from builder.errors import ConfigError, Problem
from builder.kernels.operations import select
from builder.schema.config import BuildConfig


def build(config: BuildConfig, rank: int = 0, device: str | torch.device = "meta", *, trainable: bool = False) -> Stage:
    """The module of one rank, its memory not filled (``builder.load`` fills it).

    rank: 0 to pp * dp * tp - 1; raises ConfigError for any other. device: ``meta`` allocates nothing.
    trainable: weights require gradients, and no MTP stash stands in their way.
    """
    world = config.parallel.world_size
    if not 0 <= rank < world:
        raise ConfigError([Problem("rank", rank, f"there are {world} ranks", f"use 0 to {world - 1}")])
    assembly = assemble(config, training=trainable)
    return build_rank(assembly, assembly.place(rank), torch.device(device), trainable=trainable)


def build_rank(assembly: Assembly, place: RankPlace, device: torch.device, *, trainable: bool = False) -> Stage:
    """The stage of a place, cut for its rank."""
    share_of = partial(local_ranges, shards=assembly.shards(place))
    construction = Construction(device, share_of, select(assembly.config.kernels), trainable)
    stage = Stage(assembly.stages[place.pp], construction, assembly.files[place.pp])
    for owner, name, path in construction.shared:
        owner.add_module(name, stage.get_submodule(path))
    if device.type != "meta":
        for module in stage.modules():
            if isinstance(module, Component):
                module.fill()
    return stage


def check(assembly: Assembly) -> int:
    """Assemble every rank on meta and hold its tensors against the declaration; returns the bytes compared.

    Ranks whose tensors have the same shapes are assembled once. A difference is a bug here: AssertionError.
    """
    seen: dict[tuple[int, tuple[tuple[int, ...], ...]], int] = {}
    total = 0
    for place in assembly.places():
        shapes = declared_shapes(assembly, place)
        key = (place.pp, shapes)
        if key not in seen:
            seen[key] = _check_rank(assembly, place)
        total += seen[key]
    return total


def declared_shapes(assembly: Assembly, place: RankPlace) -> tuple[tuple[int, ...], ...]:
    """What tells the ranks of a stage apart: the shapes of what tp cuts unevenly, at the stage's two ends."""
    shards = assembly.shards(place)
    members = dict(assembly.stages[place.pp].members)
    ends = [members[name] for name in ("embed", "head") if name in members]
    return tuple(local_shape(declared.tensor, shards) for end in ends for declared in walk(end))


def _check_rank(assembly: Assembly, place: RankPlace) -> int:
    spec, shards = assembly.stages[place.pp], assembly.shards(place)
    held = held_tensors(build_rank(assembly, place, torch.device("meta")))
    declared = list(walk(spec))
    names = {one.path for one in declared}
    assert names == held.keys(), f"rank {place.rank}: declared and built differ in {sorted(names ^ held.keys())}"
    for one in declared:
        _check_tensor(place.rank, one, held[one.path], shards)
    return sum(tensor.nbytes for tensor in held.values())


def _check_tensor(rank: int, declared: Declared, tensor: torch.Tensor, shards: Shards) -> None:
    expected = local_shape(declared.tensor, shards), TORCH_DTYPES[declared.tensor.dtype]
    found = tuple(tensor.shape), tensor.dtype
    assert expected == found, f"rank {rank}: {declared.path} is declared {expected} and built {found}"


def held_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of a module, each once, by path."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
