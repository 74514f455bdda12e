"""The drafter of multi-token prediction: the release's ``mtp.0`` (and an EAGLE head of the same make)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Account, ComponentSpec
from builder.components.decoder_layer.spec import DecoderLayerSpec
from builder.components.hc_head.spec import HCHeadSpec
from builder.components.linear.spec import LinearSpec


@dataclass(frozen=True, slots=True)
class MTPBlockSpec(DecoderLayerSpec):
    """A window-attention layer whose input is the stream before hc_head plus the embedding of the next token.

    embed, head: the target's own, or an embedding that only the drafter holds (on a stage without the target's).
    """

    module: ClassVar[str] = "builder.components.mtp_drafter.module:MTPBlock"

    projection: LinearSpec
    hc_head: HCHeadSpec
    embed: ComponentSpec
    head: ComponentSpec

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (
            ("embed", self.embed),
            ("enorm", self.norm),
            ("e_proj", self.projection),
            ("hnorm", self.norm),
            ("h_proj", self.projection),
            *DecoderLayerSpec.children(self),
            ("hc_head", self.hc_head),
            ("norm", self.norm),
            ("head", self.head),
        )


@dataclass(frozen=True, slots=True)
class MTPDrafterSpec(ComponentSpec):
    """Stands at ``mtp``; its block is ``mtp.0``. own_files: an EAGLE head from files of its own."""

    module: ClassVar[str] = "builder.components.mtp_drafter.module:MTPDrafter"
    account: ClassVar[Account | None] = Account.DRAFTER
    counted: ClassVar[str | None] = "mtp_drafter"

    block: MTPBlockSpec
    own_files: bool = False

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (("0", self.block),)

    def files_prefix(self, path: str) -> str | None:
        del path
        return "" if self.own_files else None
