"""The choice of experts."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.linear import exact_linear
from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import router as reference
from builder.kernels.reference.precision import exact


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """As ``reference.router.scores``."""
    if not usable(x):
        return reference.scores(x, weight)
    return operations().router_scores(exact_linear(x, weight))


def choose(scored: Tensor, bias: Tensor, active: int) -> Tensor:
    """As ``reference.router.choose``."""
    if not usable(scored):
        return reference.choose(scored, bias, active)
    return operations().choose(scored.contiguous(), exact(bias, scored), active)


def weigh(scored: Tensor, chosen: Tensor, scaling: float) -> Tensor:
    """As ``reference.router.weigh``."""
    if not usable(scored):
        return reference.weigh(scored, chosen, scaling)
    return operations().weigh(scored.contiguous(), chosen.contiguous(), scaling)
