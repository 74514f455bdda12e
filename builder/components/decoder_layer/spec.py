"""A decoder layer: attention and mixture of experts, each between two stream mixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.attention.spec import AttentionSpec
from builder.components.base.spec import ComponentSpec
from builder.components.hyper_connections.spec import HyperConnectionSpec, StreamMixSpec
from builder.components.moe.spec import MoESpec
from builder.components.norm.spec import RMSNormSpec


@dataclass(frozen=True, slots=True)
class DecoderLayerSpec(ComponentSpec):
    """``mix`` ends the layer: a plain stream mix, or the part that keeps the stream as well (the MTP stash)."""

    module: ClassVar[str] = "builder.components.decoder_layer.module:DecoderLayer"

    hc: HyperConnectionSpec
    norm: RMSNormSpec
    attn: AttentionSpec
    ffn: MoESpec
    mix: ComponentSpec

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (
            ("hc_attn", self.hc),
            ("attn_norm", self.norm),
            ("attn", self.attn),
            ("attn_mix", StreamMixSpec()),
            ("hc_ffn", self.hc),
            ("ffn_norm", self.norm),
            ("ffn", self.ffn),
            ("mix", self.mix),
        )
