"""The routed experts."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.experts.spec import ExpertsSpec
from builder.components.linear.module import StackedLinear


class Experts(Component[ExpertsSpec]):
    """SwiGLU experts; each token passes through those that the router chose."""

    w1: StackedLinear
    w2: StackedLinear
    w3: StackedLinear

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, hidden]; chosen, weights [tokens, active] -> [tokens, hidden] in float32."""
        matrices = self.w1.matrix, self.w2.matrix, self.w3.matrix
        return self.ops.experts.experts(x, chosen, weights, *matrices, self.spec.limit)
