"""Root-mean-square norm."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.norm.spec import RMSNormSpec


class RMSNorm(Component[RMSNormSpec]):
    """x * rsqrt(mean(x^2) + eps) * weight, computed in float32."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return self.ops.norm.rms_norm(x, self.weight, self.spec.eps)
