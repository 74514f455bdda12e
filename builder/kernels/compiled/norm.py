"""Root-mean-square norms."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import norm as reference
from builder.kernels.reference.precision import exact


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As ``reference.norm.rms_norm``."""
    if not usable(x):
        return reference.rms_norm(x, weight, eps)
    return operations().rms_norm(x, exact(weight, x), eps)


def unit_norm(x: Tensor, eps: float) -> Tensor:
    """As ``reference.norm.unit_norm``."""
    if not usable(x):
        return reference.unit_norm(x, eps)
    return operations().rms_norm(x, None, eps)
