"""Rotary frequencies: plain on layers without a compressor, YaRN on those with one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Origin, Tensor
from builder.schema.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN scaling without an attention factor."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class RotarySpec(ComponentSpec):
    """Angles are computed from positions and ``dim / 2`` frequencies; no table over positions is kept."""

    module: ClassVar[str] = "builder.components.rotary.module:Rotary"

    dim: int
    theta: float
    yarn: Yarn | None
    dtype: str

    @classmethod
    def of(cls, model: ModelConfig, *, compressed: bool, dtype: str) -> RotarySpec:
        """The rotary of a layer of ``model``: its own base and YaRN where the layer is ``compressed``."""
        if not compressed:
            return cls(model.qk_rope_head_dim, model.rope_theta, None, dtype)
        scaling = model.rope_scaling
        yarn = None
        if scaling is not None and scaling.type == "yarn":
            yarn = Yarn(scaling.factor, scaling.original_max_position_embeddings, scaling.beta_fast, scaling.beta_slow)
        return cls(model.qk_rope_head_dim, model.compress_rope_theta, yarn, dtype)

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor("frequencies", (self.dim // 2,), self.dtype, origin=Origin.DERIVED, values=0),)

    def frequencies(self) -> tuple[float, ...]:
        """Radians per position of each rotated pair, dim / 2 of them."""
        plain = [self.theta ** (-2 * i / self.dim) for i in range(self.dim // 2)]
        if self.yarn is None:
            return tuple(plain)
        low = max(math.floor(self._turns(self.yarn.beta_fast, self.yarn.original)), 0)
        high = min(math.ceil(self._turns(self.yarn.beta_slow, self.yarn.original)), self.dim - 1)
        span = max(high - low, 0.001)
        ramps = (min(max((i - low) / span, 0.0), 1.0) for i in range(self.dim // 2))
        return tuple(f / self.yarn.factor * ramp + f * (1 - ramp) for f, ramp in zip(plain, ramps, strict=True))

    def _turns(self, rotations: float, original: int) -> float:
        # The pair that makes ``rotations`` turns over the original context.
        return self.dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))
