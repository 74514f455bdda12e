"""Pooling of windows of tokens into one entry each."""

from __future__ import annotations

import torch
from torch import Tensor


def pool(keys: Tensor, scores: Tensor, absent: Tensor | None = None) -> Tensor:
    """Softmax over the rows of a window, for each feature by itself: [entries, rows, width] -> [entries, width].

    absent [entries, rows]: rows before the first token; they take no part.
    """
    if absent is not None:
        scores = scores.masked_fill(absent.unsqueeze(-1), -torch.inf)
        keys = keys.masked_fill(absent.unsqueeze(-1), 0)
    return (torch.softmax(scores, dim=1) * keys).sum(1)
