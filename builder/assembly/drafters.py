"""Which parts each speculative method brings to the last stage; ``schema.spec`` names the function of each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from builder.assembly.model import Member, ModelParts
from builder.components.aux_hidden_tap.spec import AuxHiddenTapSpec
from builder.components.base.spec import ComponentSpec, SharedSpec
from builder.components.draft_model.spec import DraftModelSpec
from builder.components.dspark_drafter.spec import DSparkDrafterSpec
from builder.components.linear.spec import Formats, LinearSpec, WeightFormat
from builder.components.mtp_drafter.spec import MTPBlockSpec, MTPDrafterSpec
from builder.schema.config import BuildConfig
from builder.schema.model import DSPARK_STAGES, SWA


@dataclass(frozen=True)
class DraftingStage:
    """What a drafter is built for: the target's parts, and whether the last stage has the embedding too."""

    config: BuildConfig
    parts: ModelParts
    embeds: bool
    activation_dtype: str

    @property
    def embedding(self) -> ComponentSpec:
        """The target's embedding where it stands on the same stage, else a copy of the drafter's own."""
        return SharedSpec("embed") if self.embeds else self.parts.embedding(source="embed.weight")


def drafter_members(stage: DraftingStage) -> tuple[Member, ...]:
    """The parts that the chosen method adds after the output head; none for ``none`` and ``ngram``."""
    module, _, function = stage.config.spec.brings.partition(":")
    return getattr(importlib.import_module(module), function)(stage) if module else ()


def mtp_members(stage: DraftingStage) -> tuple[Member, ...]:
    """The release's block, or a head of the same make."""
    parts, model = stage.parts, stage.config.model
    layer = parts.layer_of(SWA)
    block = MTPBlockSpec(
        hc=layer.hc,
        norm=layer.norm,
        attn=layer.attn,
        ffn=layer.ffn,
        mix=layer.mix,
        projection=LinearSpec(model.hidden_size, model.hidden_size, parts.formats.linear),
        hc_head=parts.hc_head,
        embed=stage.embedding,
        head=SharedSpec("head"),
    )
    return (("mtp", MTPDrafterSpec(block, own_files=stage.config.spec.own_checkpoint is not None)),)


def dspark_members(stage: DraftingStage) -> tuple[Member, ...]:
    """The release's three blocks, and the tap that they read."""
    parts, model = stage.parts, stage.config.model
    targets, rank = model.dspark_target_layer_ids, model.dspark_markov_rank
    assert targets is not None, "a DSpark release has its dspark_* fields"
    assert rank is not None, "a DSpark release has its dspark_* fields"
    tokens = stage.config.runtime.max_num_batched_tokens
    drafter = DSparkDrafterSpec(
        layer=parts.layer_of(SWA),
        stages=DSPARK_STAGES,
        target_layers=len(targets),
        markov_rank=rank,
        vocabulary=model.vocab_size,
        hc_head=parts.hc_head,
        linear=parts.formats.linear,
        plain=WeightFormat("plain", parts.formats.plain),
        embed=stage.embedding,
        head=SharedSpec("head"),
    )
    tap = AuxHiddenTapSpec(tokens, tuple(targets), model.hidden_size, stage.activation_dtype)
    return (("aux_hidden_tap", tap), ("mtp", drafter))


def draft_model_members(stage: DraftingStage) -> tuple[Member, ...]:
    """The whole draft."""
    draft = stage.config.draft
    assert draft is not None, "spec=draft_model brings its draft"
    formats = Formats.of(draft, stage.config.runtime.weights)
    parts = ModelParts(draft, formats, stage.parts.exact_dtype)
    layers = tuple((f"layers.{index}", parts.layer(index)) for index in range(draft.num_hidden_layers))
    whole = DraftModelSpec(
        first=0,
        last=draft.num_hidden_layers - 1,
        members=(("embed", parts.embedding()), *layers, *parts.outputs),
        reads="ids",
        writes="logits",
        streams=draft.hc_mult,
        activation=stage.activation_dtype,
    )
    return (("draft", whole),)
