"""The plan of stages, as data: which part of which layer stands on which rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

from builder.assembly import sharding
from builder.assembly.drafters import DraftingStage, drafter_members
from builder.assembly.measure import CacheCost, FilesCost, cache_cost, files_cost, footprint
from builder.assembly.model import Member, ModelParts
from builder.assembly.partition import Load, auto_partition, even_partition
from builder.assembly.sharding import Shards, shards_of
from builder.components.aux_hidden_tap.spec import AuxHiddenTapSpec
from builder.components.base.spec import Account, CacheFormat, ComponentSpec, SharedSpec
from builder.components.linear.spec import Formats, dtype_name
from builder.components.mtp_stash.spec import MTPStashSpec
from builder.components.stage.spec import StageSpec
from builder.errors import Problem
from builder.schema.config import BuildConfig


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's coordinates; rank = ((pp * dp_size) + dp) * tp_size + tp."""

    rank: int
    pp: int
    dp: int
    tp: int


@dataclass(frozen=True, slots=True)
class Assembly:
    """A configuration as stages. ``stages[pp]`` is unsplit within the stage; a rank's cut is ``shards(place)``.

    files: the same stages as the official files store them (the very same unless runtime.weights dequantizes).
    """

    config: BuildConfig
    partition: tuple[int, ...]
    stages: tuple[StageSpec, ...]
    files: tuple[StageSpec, ...]
    cache_format: CacheFormat

    def places(self) -> Iterator[RankPlace]:
        """Every rank, in rank order."""
        parallel = self.config.parallel
        for rank in range(parallel.world_size):
            rest, tp = divmod(rank, parallel.tp)
            pp, dp = divmod(rest, parallel.dp)
            yield RankPlace(rank, pp, dp, tp)

    def place(self, rank: int) -> RankPlace:
        """The coordinates of one rank."""
        parallel = self.config.parallel
        rest, tp = divmod(rank, parallel.tp)
        return RankPlace(rank, *divmod(rest, parallel.dp), tp)

    def shards(self, place: RankPlace) -> Shards:
        """How the tensors of a stage are cut for one rank."""
        return shards_of(self.config.parallel, place.dp, place.tp)


def assemble(config: BuildConfig, *, training: bool = False) -> Assembly:
    """The stages of a configuration, which must be legal (``composition.compose`` has checked it).

    training: a plain mix ends the last layer, and there is no stash: its rows are overwritten, which autograd forbids.
    """
    planner = _planner(config, training=training)
    partition = planner.partition()
    stages = planner.stages(partition)
    stored = _planner(_as_stored(config), training=training)
    files = stages if config.runtime.weights == "native" else stored.stages(partition)
    return Assembly(config, tuple(partition), stages, files, planner.cache_format)


def official(config: BuildConfig) -> StageSpec:
    """The unsplit model and its drafter as the official files store them: the specification of the checkpoint."""
    return _planner(_as_stored(config)).whole()


def official_files(whole: StageSpec) -> tuple[FilesCost, FilesCost]:
    """What the target's files must supply for ``official(config)``, and what a draft's own must; each tensor once."""
    target = [files_cost(spec, own_files=False) for _, spec in whole.members]
    own = [files_cost(spec, own_files=True) for _, spec in whole.members]
    return sum(target, FilesCost(0, 0)), sum(own, FilesCost(0, 0))


def problems(config: BuildConfig) -> Iterator[Problem]:
    """What the tensors themselves show: divisions that do not work out."""
    yield from sharding.problems(config, sharding.rules_of(_planner(config).whole()))


def counted_parts(stage: StageSpec) -> Counter[str]:
    """How many of each part a stage has; a drafter counts once, whatever is in it."""
    counts: Counter[str] = Counter()
    pending: list[ComponentSpec] = [stage]
    while pending:
        part = pending.pop()
        if part.counted:
            counts[part.counted] += 1
        if part.account is not Account.DRAFTER:
            pending.extend(child for _, child in part.children())
    return counts


def _exact(config: BuildConfig) -> str:
    return "F64" if config.runtime.dtype == "float64" else "F32"


def _as_stored(config: BuildConfig) -> BuildConfig:
    return replace(config, runtime=replace(config.runtime, weights="native"))


def _planner(config: BuildConfig, *, training: bool = False) -> _Planner:
    formats = Formats.of(config.model, config.runtime.weights)
    return _Planner(config, ModelParts(config.model, formats, _exact(config)), training=training)


class _Planner:
    def __init__(self, config: BuildConfig, parts: ModelParts, *, training: bool) -> None:
        self.config, self.parts, self.training = config, parts, training
        self.stash = config.spec.wants_stash and not training
        self.layers = config.model.num_hidden_layers
        self.activation = dtype_name(config.runtime.dtype)
        self.cache_format = CacheFormat(config.cache.layout, self.activation, _exact(config), config.spec.drafts)

    def whole(self) -> StageSpec:
        return self.stage(0, self.layers - 1)

    def stages(self, partition: Sequence[int]) -> tuple[StageSpec, ...]:
        ends = accumulate(partition)
        return tuple(self.stage(end - count, end - 1) for end, count in zip(ends, partition, strict=True))

    def stage(self, first: int, last: int) -> StageSpec:
        """Layers ``first`` to ``last``, with the ends of the model where they stand on this stage."""
        starts, finishes = first == 0, last == self.layers - 1
        layers = [(f"layers.{index}", self.parts.layer(index)) for index in range(first, last + 1)]
        members: list[Member] = [*self._before()] if starts else []
        after: tuple[Member, ...] = ()
        if finishes:
            members = [*self._stash(), *members]
            after = self._after(embeds=starts)
            for index, mix in self._mixes(after).items():
                if index >= first:
                    name, layer = layers[index - first]
                    layers[index - first] = name, replace(layer, mix=mix)
        members += [*layers, *after]
        return StageSpec(
            first,
            last,
            tuple(members),
            reads="ids" if starts else "stream",
            writes="logits" if finishes else "stream",
            streams=self.config.model.hc_mult,
            activation=self.activation,
        )

    def _before(self) -> tuple[Member, ...]:
        return (("embed", self.parts.embedding()),)

    def _stash(self) -> tuple[Member, ...]:
        if not self.stash:
            return ()
        model, tokens = self.config.model, self.config.runtime.max_num_batched_tokens
        return (("mtp_stash", MTPStashSpec(tokens, model.hc_mult, model.hidden_size, self.activation)),)

    def _mixes(self, after: tuple[Member, ...]) -> dict[int, ComponentSpec]:
        # What ends a layer in place of a plain mix: the stash writes the last one into its rows, a tap averages.
        if self.training:
            return {}
        mixes: dict[int, ComponentSpec] = {self.layers - 1: SharedSpec("mtp_stash")} if self.stash else {}
        for name, part in after:
            if isinstance(part, AuxHiddenTapSpec):
                mixes |= part.mixes(name)
        return mixes

    def _after(self, *, embeds: bool) -> tuple[Member, ...]:
        stage = DraftingStage(self.config, self.parts, embeds, self.activation)
        return (*self.parts.outputs, *drafter_members(stage))

    def partition(self) -> list[int]:
        parallel = self.config.parallel
        given: Any = parallel.partition
        if isinstance(given, list):
            return [int(layers) for layers in cast("list[int]", given)]
        if parallel.partition == "even":
            return even_partition(self.layers, parallel.pp)
        if parallel.pp == 1:
            return [self.layers]
        layers = [self._load((("", self.parts.layer(index)),)).largest for index in range(self.layers)]
        first = self._load(self._before())
        last = self._load((*self._stash(), *self._after(embeds=False)))
        return auto_partition(layers, first, last, parallel.pp)

    def _load(self, members: tuple[Member, ...]) -> Load:
        # The first tp rank holds the most rows of the vocabulary, the last one the fewest; all else is equal.
        parallel, length = self.config.parallel, self.config.runtime.max_model_len
        cache = sum(cache_cost(spec, self.cache_format).nbytes(length) for _, spec in members)
        most, fewest = (
            cache + sum(footprint(spec, shards_of(parallel, 0, tp)).nbytes for _, spec in members)
            for tp in (0, parallel.tp - 1)
        )
        return Load(most, fewest)


def stage_cache(stage: StageSpec, form: CacheFormat) -> CacheCost:
    """The cache of every layer of a stage, and of its drafter."""
    return sum((cache_cost(spec, form) for _, spec in stage.members), CacheCost(0, ()))
