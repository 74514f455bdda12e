"""Manifold-constrained hyper-connections (mHC, paper section 2.2): hc_mult residual streams, mixed by the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Tensor


@dataclass(frozen=True, slots=True)
class HyperConnectionSpec(ComponentSpec):
    """The mix before one sub-layer: [streams, hidden] -> the sub-layer's input, and the weights of the mix after it."""

    module: ClassVar[str] = "builder.components.hyper_connections.module:HyperConnection"
    joint: ClassVar[str] = "_"

    streams: int
    hidden: int
    sinkhorn_iters: int
    eps: float
    norm_eps: float
    dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        k = self.streams
        mixes = k + k + k * k
        return (
            Tensor("fn", (mixes, k * self.hidden), self.dtype),
            Tensor("base", (mixes,), self.dtype),
            Tensor("scale", (3,), self.dtype),
        )


@dataclass(frozen=True, slots=True)
class StreamMixSpec(ComponentSpec):
    """The mix after a sub-layer, into a new stream."""

    module: ClassVar[str] = "builder.components.hyper_connections.module:StreamMix"
