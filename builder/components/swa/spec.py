"""Sliding window attention: the window and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.attention.spec import AttentionSpec


@dataclass(frozen=True, slots=True)
class SlidingWindowAttentionSpec(AttentionSpec):
    """Reads the last ``window`` tokens."""

    module: ClassVar[str] = "builder.components.swa.module:SlidingWindowAttention"
    counted: ClassVar[str | None] = "swa"
