"""A decoder layer."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.decoder_layer.spec import DecoderLayerSpec
from builder.components.hyper_connections.module import HyperConnection, StreamMix
from builder.components.moe.module import MoE
from builder.components.norm.module import RMSNorm

DecoderLayerSpecT = TypeVar("DecoderLayerSpecT", bound=DecoderLayerSpec)


class DecoderLayer(Component[DecoderLayerSpecT]):
    """Attention and mixture of experts, each between two stream mixes; ``mix`` ends the layer."""

    hc_attn_fn: Tensor
    hc_attn_base: Tensor
    hc_attn_scale: Tensor
    hc_ffn_fn: Tensor
    hc_ffn_base: Tensor
    hc_ffn_scale: Tensor
    hc_attn: HyperConnection
    attn_norm: RMSNorm
    attn: nn.Module
    attn_mix: StreamMix
    hc_ffn: HyperConnection
    ffn_norm: RMSNorm
    ffn: MoE
    mix: nn.Module

    def forward(self, stream: Tensor, step: Step) -> Tensor:
        """[tokens, hc_mult, hidden] -> [tokens, hc_mult, hidden]."""
        x, post, comb = self.hc_attn(stream, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale)
        stream = self.attn_mix(self.attn(self.attn_norm(x), step), stream, post, comb, step)
        x, post, comb = self.hc_ffn(stream, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale)
        return self.mix(self.ffn(self.ffn_norm(x), step), stream, post, comb, step)
