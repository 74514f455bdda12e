"""Hyper-connections: the mixes before and after a sub-layer."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.hyper_connections.spec import HyperConnectionSpec, StreamMixSpec


class HyperConnection(Component[HyperConnectionSpec]):
    """The mix before a sub-layer. Its tensors are the layer's (``hc_attn_fn``), which hands them over."""

    def forward(self, stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[tokens, hc_mult, hidden] -> x [tokens, hidden], post [tokens, hc_mult], comb [tokens, hc_mult, hc_mult]."""
        spec = self.spec
        return self.ops.hyper_connections.before(
            stream, fn, base, scale, iters=spec.sinkhorn_iters, eps=spec.eps, norm_eps=spec.norm_eps
        )


class StreamMix(Component[StreamMixSpec]):
    """The mix after a sub-layer, into a new stream."""

    def forward(self, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, step: Step) -> Tensor:
        """y [tokens, hidden], stream [tokens, hc_mult, hidden] -> [tokens, hc_mult, hidden]."""
        del step
        return self.ops.hyper_connections.after(y, stream, post, comb)
