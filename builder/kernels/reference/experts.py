"""SwiGLU experts, clamped; the routing weight multiplies before w2."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from builder.kernels.reference.linear import linear
from builder.kernels.reference.precision import exact
from builder.kernels.shapes import split

Matrix = tuple[Tensor, Tensor | None]
"""A weight and its scale; the scale is None where the weight is plain."""


def expert(x: Tensor, w1: Matrix, w2: Matrix, w3: Matrix, limit: float, weights: Tensor | None = None) -> Tensor:
    """w2(weights * silu(min(w1 x, limit)) * clamp(w3 x)): x [tokens, hidden], weights [tokens, 1] exact."""
    gate = exact(linear(x, *w1)).clamp(max=limit)
    up = exact(linear(x, *w3)).clamp(min=-limit, max=limit)
    active = F.silu(gate) * up
    if weights is not None:
        active = weights * active
    return linear(active.to(x.dtype), *w2)


def experts(
    x: Tensor, chosen: Tensor, weights: Tensor, w1: Matrix, w2: Matrix, w3: Matrix, limit: float, first: int = 0
) -> Tensor:
    """The weighted sum of each token's experts, exact.

    x [tokens, hidden]; chosen, weights [tokens, active]; matrices [experts, …] of experts ``first`` onwards.
    """
    total = x.new_zeros(x.shape, dtype=weights.dtype)
    count, active = w1[0].shape[0], chosen.shape[1]
    local = (chosen - first).flatten().clamp(-1, count)
    order = local.argsort(stable=True)
    sizes: list[int] = cast("Any", torch.bincount(local + 1, minlength=count + 2)).tolist()
    groups = split(order, sizes)[1:-1]  # those of other ranks' experts stand at both ends
    for index, group in enumerate(groups):
        if group.numel():
            rows, weight = group // active, weights.flatten()[group].unsqueeze(-1)
            part = expert(x[rows], _at(w1, index), _at(w2, index), _at(w3, index), limit, weight)
            total.index_add_(0, rows, part.to(total.dtype))
    return total


def _at(matrix: Matrix, index: int) -> Matrix:
    weight, scale = matrix
    return weight[index], None if scale is None else scale[index]
