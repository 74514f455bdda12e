"""The head of the hyper-connections."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.hc_head.spec import HCHeadSpec


class HCHead(Component[HCHeadSpec]):
    """Streams to one hidden state. Its tensors are the stage's (``hc_head_fn``), which hands them over."""

    def forward(self, stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> Tensor:
        """[tokens, hc_mult, hidden] -> [tokens, hidden]."""
        spec = self.spec
        return self.ops.hyper_connections.head(stream, fn, base, scale, eps=spec.eps, norm_eps=spec.norm_eps)
