"""SwiGLU experts: tokens are sorted once, and few of them share one reading of each weight."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.linear import FEW, linear
from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import experts as reference
from builder.kernels.reference.experts import Matrix


def expert(x: Tensor, w1: Matrix, w2: Matrix, w3: Matrix, limit: float, weights: Tensor | None = None) -> Tensor:
    """As ``reference.experts.expert``."""
    if weights is not None or not usable(x):
        return reference.expert(x, w1, w2, w3, limit, weights)
    return linear(operations().swiglu_(linear(x, *w1), linear(x, *w3), limit), *w2)


def experts(
    x: Tensor, chosen: Tensor, weights: Tensor, w1: Matrix, w2: Matrix, w3: Matrix, limit: float, first: int = 0
) -> Tensor:
    """As ``reference.experts.experts``; quantized weights are left to it."""
    if not usable(x) or any(scale is not None or weight.dtype != x.dtype for weight, scale in (w1, w2, w3)):
        return reference.experts(x, chosen, weights, w1, w2, w3, limit, first)
    matrices = (weight for weight, _ in (w1, w2, w3))
    return operations().experts(x.contiguous(), chosen.contiguous(), weights.contiguous(), *matrices, limit, first, FEW)
