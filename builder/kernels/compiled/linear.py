"""Products of few rows with plain weights, which torch spends more time to start than to compute."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import linear as reference

FEW = 8
"""Rows up to which reading the weight is what a product costs."""


def linear(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """As ``reference.linear.linear``."""
    if scale is None and _few(x) and weight.dtype == x.dtype:
        return operations().few_linear(x, weight, False)
    return reference.linear(x, weight, scale)


def exact_linear(x: Tensor, weight: Tensor) -> Tensor:
    """As ``reference.linear.exact_linear``; a weight in a smaller dtype is widened on the way, not copied."""
    if _few(x) and weight.dtype.is_floating_point and weight.element_size() > 1:
        return operations().few_linear(x, weight, True)
    return reference.exact_linear(x, weight)


def grouped(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """As ``reference.linear.grouped``."""
    if scale is None and usable(x) and x.shape[0] <= FEW and weight.dtype == x.dtype:
        return operations().few_linear(x.flatten(1), weight, False)
    return reference.grouped(x, weight, scale)


def _few(x: Tensor) -> bool:
    return usable(x) and 0 < x.numel() <= FEW * x.shape[-1]
