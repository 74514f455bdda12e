"""Rotary position embedding on the last features, in interleaved pairs (2i, 2i + 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.shapes import unflatten

Angles = tuple[Tensor, Tensor]
"""Cosine and sine, [..., dim / 2] each, in the exact dtype."""


def angles(positions: Tensor, frequencies: Tensor) -> Angles:
    """positions [...] (integers), frequencies [dim / 2] -> cosine and sine."""
    turned = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies
    return turned.cos(), turned.sin()


def rotate(x: Tensor, turn: Angles, *, back: bool = False) -> Tensor:
    """Rotate the last 2 * turn.shape[-1] features of x [..., width] by ``turn`` [..., dim / 2] (broadcast); or back."""
    cos, sin = turn
    dim = 2 * cos.shape[-1]
    pairs = unflatten(exact(x[..., -dim:]), -1, (-1, 2))
    a, b = pairs.unbind(-1)
    sin = -sin if back else sin
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((x[..., :-dim], turned.to(x.dtype)), dim=-1)
