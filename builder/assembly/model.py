"""From a model's configuration to the declarations of its parts."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property

from builder.components.attention.spec import AttentionSpec
from builder.components.base.spec import ComponentSpec
from builder.components.decoder_layer.spec import DecoderLayerSpec
from builder.components.embedding.spec import EmbeddingSpec
from builder.components.experts.spec import ExpertsSpec
from builder.components.hash_router.spec import HashRouterSpec
from builder.components.hc_head.spec import HCHeadSpec
from builder.components.hyper_connections.spec import HyperConnectionSpec, StreamMixSpec
from builder.components.linear.spec import Formats
from builder.components.lm_head.spec import LMHeadSpec
from builder.components.moe.spec import MoESpec
from builder.components.norm.spec import FinalNormSpec, RMSNormSpec
from builder.components.router.spec import RouterSpec
from builder.components.shared_expert.spec import SharedExpertSpec
from builder.schema.model import LAYER_KINDS, ModelConfig

Member = tuple[str, ComponentSpec]


def attention_of(kind: str) -> type[AttentionSpec]:
    """The declaration that is registered for a layer kind."""
    module, _, name = LAYER_KINDS[kind].partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass
class ModelParts:
    """Makes the declarations of one model. Equal layers share one declaration, so that each is measured once.

    exact_dtype: of what is float32 unless the whole run is in float64 (rotary frequencies).
    """

    model: ModelConfig
    formats: Formats
    exact_dtype: str

    def __post_init__(self) -> None:
        self._layers: dict[tuple[str, bool], DecoderLayerSpec] = {}

    def layer(self, index: int) -> DecoderLayerSpec:
        """Backbone layer ``index``, which ends in a plain stream mix."""
        return self.layer_of(self.model.layer_types[index], hashed=index < self.model.num_hash_layers)

    def layer_of(self, kind: str, *, hashed: bool = False) -> DecoderLayerSpec:
        """A layer by its attention kind and its router."""
        if (kind, hashed) not in self._layers:
            self._layers[kind, hashed] = DecoderLayerSpec(
                hc=self._hyper_connection,
                norm=self.norm,
                attn=attention_of(kind).of(self.model, self.formats, self.exact_dtype),
                ffn=self._moe(self._hash_router if hashed else self._router),
                mix=StreamMixSpec(),
            )
        return self._layers[kind, hashed]

    def embedding(self, source: str | None = None) -> EmbeddingSpec:
        """The input embedding, or a second copy of it read from ``source``."""
        return EmbeddingSpec(self.model.vocab_size, self.model.hidden_size, self.formats.plain, source)

    @property
    def outputs(self) -> tuple[Member, ...]:
        """What stands after the last layer."""
        model = self.model
        return (
            ("hc_head", self.hc_head),
            ("norm", FinalNormSpec(model.hidden_size, model.rms_norm_eps, self.formats.plain)),
            ("head", LMHeadSpec(model.vocab_size, model.hidden_size, self.formats.plain)),
        )

    @cached_property
    def norm(self) -> RMSNormSpec:
        """A norm over the hidden size."""
        return RMSNormSpec(self.model.hidden_size, self.model.rms_norm_eps, self.formats.plain)

    @cached_property
    def hc_head(self) -> HCHeadSpec:
        """The head of the hyper-connections."""
        model = self.model
        return HCHeadSpec(model.hc_mult, model.hidden_size, model.hc_eps, model.rms_norm_eps, self.formats.kept)

    @cached_property
    def _hyper_connection(self) -> HyperConnectionSpec:
        model = self.model
        return HyperConnectionSpec(
            model.hc_mult,
            model.hidden_size,
            model.hc_sinkhorn_iters,
            model.hc_eps,
            model.rms_norm_eps,
            self.formats.kept,
        )

    def _moe(self, gate: ComponentSpec) -> MoESpec:
        model, formats = self.model, self.formats
        hidden, inner, limit = model.hidden_size, model.moe_intermediate_size, model.swiglu_limit
        return MoESpec(
            gate,
            ExpertsSpec(hidden, inner, model.n_routed_experts, limit, formats.expert),
            SharedExpertSpec(hidden, inner, limit, formats.linear),
        )

    @property
    def _router(self) -> RouterSpec:
        model, formats = self.model, self.formats
        return RouterSpec(
            model.hidden_size,
            model.n_routed_experts,
            model.num_experts_per_tok,
            model.routed_scaling_factor,
            formats.plain,
            formats.kept,
        )

    @property
    def _hash_router(self) -> HashRouterSpec:
        model = self.model
        return HashRouterSpec(
            model.hidden_size,
            model.n_routed_experts,
            model.num_experts_per_tok,
            model.routed_scaling_factor,
            model.vocab_size,
            self.formats.plain,
        )
