"""The DSpark drafter: three window-attention blocks that read averaged hidden states of named target layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Account, ComponentSpec
from builder.components.decoder_layer.spec import DecoderLayerSpec
from builder.components.hc_head.spec import HCHeadSpec
from builder.components.linear.spec import LinearSpec, WeightFormat


@dataclass(frozen=True, slots=True)
class DSparkBlockSpec(DecoderLayerSpec):
    """One of the blocks, with what only the first (``before``) or only the last (``after``) has."""

    module: ClassVar[str] = "builder.components.dspark_drafter.module:DSparkBlock"

    before: tuple[tuple[str, ComponentSpec], ...] = ()
    after: tuple[tuple[str, ComponentSpec], ...] = ()

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (*self.before, *DecoderLayerSpec.children(self), *self.after)


@dataclass(frozen=True, slots=True)
class DSparkDrafterSpec(ComponentSpec):
    """Stands at ``mtp``: blocks ``mtp.0`` to ``mtp.2``.

    main_proj takes ``target_layers`` averages side by side; the Markov head has rank ``markov_rank``.
    """

    module: ClassVar[str] = "builder.components.dspark_drafter.module:DSparkDrafter"
    account: ClassVar[Account | None] = Account.DRAFTER
    counted: ClassVar[str | None] = "dspark_drafter"

    layer: DecoderLayerSpec
    stages: int
    target_layers: int
    markov_rank: int
    vocabulary: int
    hc_head: HCHeadSpec
    linear: WeightFormat
    plain: WeightFormat
    embed: ComponentSpec
    head: ComponentSpec

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        last = self.stages - 1
        return tuple(
            (str(i), self._block(self._first() if i == 0 else (), self._last() if i == last else ()))
            for i in range(self.stages)
        )

    def _block(
        self, before: tuple[tuple[str, ComponentSpec], ...], after: tuple[tuple[str, ComponentSpec], ...]
    ) -> DSparkBlockSpec:
        layer = self.layer
        return DSparkBlockSpec(layer.hc, layer.norm, layer.attn, layer.ffn, layer.mix, before, after)

    def _first(self) -> tuple[tuple[str, ComponentSpec], ...]:
        hidden = self.hc_head.hidden
        return (
            ("embed", self.embed),
            ("main_proj", LinearSpec(hidden, self.target_layers * hidden, self.linear)),
            ("main_norm", self.layer.norm),
        )

    def _last(self) -> tuple[tuple[str, ComponentSpec], ...]:
        hidden, rank = self.hc_head.hidden, self.markov_rank
        markov = LinearSpec(self.vocabulary, rank, self.plain)
        return (
            ("hc_head", self.hc_head),
            ("norm", self.layer.norm),
            ("head", self.head),
            ("markov_head.markov_w1", markov),
            ("markov_head.markov_w2", markov),
            ("confidence_head.proj", LinearSpec(1, hidden + rank, self.plain)),
        )
