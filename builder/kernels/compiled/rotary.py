"""Rotary position embedding."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import rotary as reference
from builder.kernels.reference.rotary import Angles, angles

__all__ = ["angles", "rotate"]


def rotate(x: Tensor, turn: Angles, *, back: bool = False) -> Tensor:
    """As ``reference.rotary.rotate``, for one angle per row or, [..., 1, dim / 2], per row of heads."""
    cos, sin = turn
    heads = x.shape[-2] if cos.dim() == x.dim() > 1 and cos.shape[-2] == 1 else 1
    half = cos.shape[-1]
    if not usable(x) or cos.numel() * x.shape[-1] * heads != x.numel() * half:
        return reference.rotate(x, turn, back=back)
    return operations().rotate(x, cos, sin, back)
