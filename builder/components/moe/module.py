"""The mixture of experts."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.experts.module import Experts
from builder.components.hash_router.module import HashRouter
from builder.components.moe.spec import MoESpec
from builder.components.router.module import Router
from builder.components.shared_expert.module import SharedExpert


class MoE(Component[MoESpec]):
    """Router, routed experts, shared expert."""

    gate: Router | HashRouter
    experts: Experts
    shared_experts: SharedExpert

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        chosen, weights = self.gate(x, step)
        routed = self.experts(x, chosen, weights)
        return (routed + self.shared_experts(x)).to(x.dtype)
