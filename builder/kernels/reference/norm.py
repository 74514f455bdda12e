"""Root-mean-square norms; computed in float32, rounded once at the end."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from builder.kernels.reference.precision import exact


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    # [..., width]
    wide = exact(x)
    return F.rms_norm(wide, weight.shape, weight.to(wide.dtype), eps).to(x.dtype)


def unit_norm(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension, without a weight."""
    # [..., width]
    return F.rms_norm(exact(x), x.shape[-1:], None, eps).to(x.dtype)
