"""The operations that a model is computed with, and the choice of an implementation for each.

An implementation is a folder beside this file with one module per family below; ``reference`` has them all.
A new one is a folder, its name in ``schema.groups.KERNEL_IMPLEMENTATIONS``, and a YAML in ``conf/kernels``.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from builder.schema.groups import KernelsConfig

    Matrix = tuple[Tensor, Tensor | None]
    Angles = tuple[Tensor, Tensor]


class LinearOps(Protocol):
    """Products with weights as they are stored: see ``reference.linear``."""

    def linear(self, x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor: ...
    def exact_linear(self, x: Tensor, weight: Tensor) -> Tensor: ...
    def grouped(self, x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor: ...


class NormOps(Protocol):
    """Root-mean-square norms: see ``reference.norm``."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def unit_norm(self, x: Tensor, eps: float) -> Tensor: ...


class RotaryOps(Protocol):
    """Rotary position embedding: see ``reference.rotary``."""

    def angles(self, positions: Tensor, frequencies: Tensor) -> Angles: ...
    def rotate(self, x: Tensor, turn: Angles, *, back: bool = False) -> Tensor: ...


class HyperConnectionOps(Protocol):
    """The mixes of the residual streams: see ``reference.hyper_connections``."""

    def before(
        self, stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iters: int, eps: float, norm_eps: float
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def after(self, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, out: Tensor | None = None) -> Tensor: ...
    def head(
        self, stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, eps: float, norm_eps: float
    ) -> Tensor: ...


class AttentionOps(Protocol):
    """Attention over one shared head: see ``reference.attention``."""

    def attend(
        self,
        queries: Tensor,
        window: Tensor,
        starts: Tensor,
        sink: Tensor,
        entries: Tensor | None = None,
        ready: Tensor | None = None,
        picks: Tensor | None = None,
        decode: Callable[[Tensor, torch.dtype], Tensor] | None = None,
    ) -> Tensor: ...


class CompressorOps(Protocol):
    """Pooling of windows: see ``reference.compressor``."""

    def pool(self, keys: Tensor, scores: Tensor, absent: Tensor | None = None) -> Tensor: ...


class IndexerOps(Protocol):
    """The choice of entries: see ``reference.indexer``."""

    def pick(self, queries: Tensor, keys: Tensor, weights: Tensor, ready: Tensor, count: int) -> Tensor: ...
    def scores(self, queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor: ...


class RouterOps(Protocol):
    """The choice of experts: see ``reference.router``."""

    def scores(self, x: Tensor, weight: Tensor) -> Tensor: ...
    def choose(self, scored: Tensor, bias: Tensor, active: int) -> Tensor: ...
    def weigh(self, scored: Tensor, chosen: Tensor, scaling: float) -> Tensor: ...


class ExpertOps(Protocol):
    """SwiGLU experts: see ``reference.experts``."""

    def expert(
        self, x: Tensor, w1: Matrix, w2: Matrix, w3: Matrix, limit: float, weights: Tensor | None = None
    ) -> Tensor: ...
    def experts(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        w1: Matrix,
        w2: Matrix,
        w3: Matrix,
        limit: float,
        first: int = 0,
    ) -> Tensor: ...


@dataclass(frozen=True)
class Operations:
    """One implementation per family, as ``kernels.<family>`` of the configuration names them."""

    linear: LinearOps
    experts: ExpertOps
    norm: NormOps
    rotary: RotaryOps
    hyper_connections: HyperConnectionOps
    attention: AttentionOps
    compressor: CompressorOps
    indexer: IndexerOps
    router: RouterOps


def select(kernels: KernelsConfig) -> Operations:
    """The implementations that a configuration names."""
    families = [field.name for field in dataclasses.fields(Operations)]
    modules = {
        family: importlib.import_module(f"builder.kernels.{getattr(kernels, family)}.{family}") for family in families
    }
    return Operations(**cast("dict[str, Any]", modules))
