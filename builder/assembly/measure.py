"""Bytes and values of a part on one rank, and its cache, summed from the declaration."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from builder.assembly.sharding import Shards, local_shape, values_of
from builder.components.base.spec import (
    DTYPE_BYTES,
    Account,
    CacheFormat,
    ComponentSpec,
    Declared,
    Origin,
    parts,
    walk,
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a part costs a rank before any request. booked: bytes by account; values: logical parameter values."""

    booked: tuple[tuple[Account, int], ...]
    values: int

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(size for _, size in self.booked)


@lru_cache(maxsize=4096)
def footprint(spec: ComponentSpec, shards: Shards, account: Account = Account.WEIGHTS) -> Footprint:
    """The share of one rank of a part and of what is in it."""
    booked: Counter[Account] = Counter()
    values = 0
    for declared in walk(spec, account=account):
        shape = local_shape(declared.tensor, shards)
        booked[declared.account] += math.prod(shape) * DTYPE_BYTES[declared.tensor.dtype]
        values += values_of(declared.tensor, shards)
    return Footprint(tuple(booked.items()), values)


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Bytes of a request of n tokens: ``fixed``, and for each (ratio, bytes) that many per ``ratio`` tokens."""

    fixed: int
    slopes: tuple[tuple[int, int], ...]

    def nbytes(self, tokens: int) -> int:
        """cache(n), exact."""
        return self.fixed + sum(tokens // ratio * size for ratio, size in self.slopes)

    @property
    def per_token(self) -> float:
        """The slope, in bytes per token."""
        return sum((size / ratio for ratio, size in self.slopes), 0.0)

    def __add__(self, other: CacheCost) -> CacheCost:
        slopes = Counter(dict(self.slopes))
        slopes.update(dict(other.slopes))
        return CacheCost(self.fixed + other.fixed, tuple(sorted(slopes.items())))


@lru_cache(maxsize=4096)
def cache_cost(spec: ComponentSpec, form: CacheFormat) -> CacheCost:
    """The cache of a part and of what is in it; every rank of a stage holds it whole, there is one KV head."""
    fixed = 0
    slopes: Counter[int] = Counter()
    for _, part in parts(spec):
        for rows in part.cache(form):
            fixed += rows.fixed * rows.row_bytes
            if rows.ratio:
                slopes[rows.ratio] += rows.row_bytes
    return CacheCost(fixed, tuple(sorted(slopes.items())))


@dataclass(frozen=True, slots=True)
class FilesCost:
    """What official files must supply: tensors, and their bytes."""

    tensors: int
    nbytes: int

    def __add__(self, other: FilesCost) -> FilesCost:
        return FilesCost(self.tensors + other.tensors, self.nbytes + other.nbytes)


NO_FILES = FilesCost(0, 0)


@lru_cache(maxsize=4096)
def files_cost(spec: ComponentSpec, *, own_files: bool) -> FilesCost:
    """The tensors of an unsplit part that come from the target's files, or from the part's own."""
    return sum((_file_tensor(d) for d in walk(spec) if d.own_files is own_files), NO_FILES)


def _file_tensor(declared: Declared) -> FilesCost:
    tensor = declared.tensor
    if tensor.origin is not Origin.CHECKPOINT:
        return NO_FILES
    return FilesCost(tensor.stacked or 1, tensor.nbytes)
