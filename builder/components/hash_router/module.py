"""The hash router."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.hash_router.spec import HashRouterSpec


class HashRouter(Component[HashRouterSpec]):
    """Chooses by token id, weighs by score."""

    weight: Tensor
    tid2eid: Tensor

    def forward(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> experts [tokens, active], and their weights [tokens, active] in float32."""
        scored = self.ops.router.scores(x, self.weight)
        chosen = self.tid2eid[step.ids].to(step.ids.dtype)
        return chosen, self.ops.router.weigh(scored, chosen, self.spec.scaling)
