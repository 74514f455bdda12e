"""A draft model."""

from __future__ import annotations

from builder.components.stage.module import Trunk


class DraftModel(Trunk):
    """A whole model of its own, built from the same parts."""
