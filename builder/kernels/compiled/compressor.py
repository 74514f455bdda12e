"""Pooling of windows: the reference, which runs once per window of tokens."""

from __future__ import annotations

from builder.kernels.reference.compressor import pool

__all__ = ["pool"]
