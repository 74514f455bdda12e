"""Matrix products with weights as they are stored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.reference.quantization import dequantize
from builder.kernels.shapes import unflatten


def plain(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weight's values in ``dtype``."""
    return weight.to(dtype) if scale is None else dequantize(weight, scale, dtype)


def linear(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """x W^T: x [..., in], W [out, in], in the dtype of x."""
    return F.linear(x, plain(weight, scale, x.dtype))


def exact_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in the exact dtype: x [..., in], W [out, in]."""
    wide = exact(x)
    return F.linear(wide, weight.to(wide.dtype))


def grouped(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """A matrix per group: x [tokens, groups, in], W [groups * out, in] -> [tokens, groups * out]."""
    groups = x.shape[1]
    matrices = unflatten(plain(weight, scale, x.dtype), 0, (groups, -1))
    return torch.bmm(x.transpose(0, 1), matrices.transpose(1, 2)).transpose(0, 1).flatten(1)
