"""The dtype of what must not be rounded: float32, or float64 when the whole run is in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact(x: Tensor, like: Tensor | None = None) -> Tensor:
    """``x`` in the exact dtype of ``like`` (of itself when there is none)."""
    return x.to(exact_dtype((x if like is None else like).dtype))
