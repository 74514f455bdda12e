"""The shared expert."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.linear.module import Linear, scale_of
from builder.components.shared_expert.spec import SharedExpertSpec


class SharedExpert(Component[SharedExpertSpec]):
    """A SwiGLU expert that every token passes through."""

    w1: Linear
    w2: Linear
    w3: Linear

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        matrices = [(part.weight, scale_of(part)) for part in (self.w1, self.w2, self.w3)]
        return self.ops.experts.expert(x, *matrices, limit=self.spec.limit)
