"""Shape changes whose torch methods carry no types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def unflatten(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Dimension ``dim`` as several, of ``sizes`` (one may be -1); a view."""
    return torch.unflatten(x, dim, sizes)


def split(x: Tensor, sizes: Sequence[int], dim: int = -1) -> tuple[Tensor, ...]:
    """``x`` in parts of ``sizes`` along ``dim``; views."""
    return cast("Any", x).split(tuple(sizes), dim)
