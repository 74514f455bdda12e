"""The output head."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.lm_head.spec import LMHeadSpec


class LMHead(Component[LMHeadSpec]):
    """Hidden states to logits."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, vocabulary] in float32 (float64 where the run is)."""
        return self.ops.linear.exact_linear(x, self.weight)
