"""The learned router."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.router.spec import RouterSpec


class Router(Component[RouterSpec]):
    """Chooses by score plus bias, weighs by score."""

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> experts [tokens, active], and their weights [tokens, active] in float32."""
        del step
        scored = self.ops.router.scores(x, self.weight)
        chosen = self.ops.router.choose(scored, self.bias, self.spec.active)
        return chosen, self.ops.router.weigh(scored, chosen, self.spec.scaling)
