"""Sliding window attention."""

from __future__ import annotations

from builder.components.attention.module import Attention
from builder.components.swa.spec import SlidingWindowAttentionSpec


class SlidingWindowAttention(Attention[SlidingWindowAttentionSpec]):
    """Reads the window."""
