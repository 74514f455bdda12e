"""Which experts a token goes to, and with what weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from builder.kernels.reference.linear import exact_linear
from builder.kernels.reference.selection import largest


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """sqrt(softplus(x W^T)): x [tokens, hidden], W [experts, hidden] -> [tokens, experts], exact."""
    return F.softplus(exact_linear(x, weight)).sqrt()


def choose(scored: Tensor, bias: Tensor, active: int) -> Tensor:
    """The ``active`` best by score plus bias: [tokens, experts] -> [tokens, active]."""
    return largest(scored + bias.to(scored.dtype), active)


def weigh(scored: Tensor, chosen: Tensor, scaling: float) -> Tensor:
    """The chosen experts' scores, summing to ``scaling``: [tokens, active], exact."""
    picked = torch.gather(scored, -1, chosen)
    return picked / picked.sum(-1, keepdim=True) * scaling
