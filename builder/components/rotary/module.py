"""Rotary frequencies of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.rotary.spec import RotarySpec


class Rotary(Component[RotarySpec]):
    """Interleaved pairs of the last ``dim`` features are rotated by position times frequency."""

    frequencies: Tensor

    def fill(self) -> None:
        with torch.no_grad():
            self.frequencies.copy_(torch.tensor(self.spec.frequencies(), dtype=torch.float64))

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [...] -> cosine and sine [..., dim / 2]."""
        return self.ops.rotary.angles(positions, self.frequencies)

    def step_angles(self, step: Step) -> tuple[Tensor, Tensor]:
        """The angles of a step's tokens, [tokens, dim / 2]; layers with equal frequencies share them."""
        if self.spec not in step.angles:
            step.angles[self.spec] = self.angles(step.positions)
        return step.angles[self.spec]
