"""The drafter of multi-token prediction."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from builder.components.base.module import Component
from builder.components.base.step import Step
from builder.components.decoder_layer.module import DecoderLayer
from builder.components.embedding.module import Embedding
from builder.components.hc_head.module import HCHead
from builder.components.linear.module import Linear
from builder.components.lm_head.module import LMHead
from builder.components.mtp_drafter.spec import MTPBlockSpec, MTPDrafterSpec
from builder.components.norm.module import RMSNorm


class MTPBlock(DecoderLayer[MTPBlockSpec]):
    """A window-attention layer over the stream before hc_head and the embedding of the next token."""

    embed: Embedding
    enorm: RMSNorm
    e_proj: Linear
    hnorm: RMSNorm
    h_proj: Linear
    hc_head_fn: Tensor
    hc_head_base: Tensor
    hc_head_scale: Tensor
    hc_head: HCHead
    norm: RMSNorm
    head: LMHead

    def forward(self, stream: Tensor, step: Step) -> Tensor:
        """The block's own stream; ``step.ids`` are the tokens that follow those of ``stream``.

        [tokens, hc_mult, hidden] -> [tokens, hc_mult, hidden], which can be the input of the next draft.
        """
        embedded = self.e_proj(self.enorm(self.embed(step.ids).to(stream.dtype)))
        mixed = embedded.unsqueeze(1) + self.h_proj(self.hnorm(stream))
        return super().forward(mixed, step)

    def logits(self, stream: Tensor) -> Tensor:
        """The block's stream [tokens, hc_mult, hidden] -> logits [tokens, vocabulary]."""
        x = self.hc_head(stream, self.hc_head_fn, self.hc_head_base, self.hc_head_scale)
        return self.head(self.norm(x))


class MTPDrafter(Component[MTPDrafterSpec]):
    """Holds the block as ``0``, its official number."""

    @property
    def block(self) -> MTPBlock:
        """The one block."""
        return cast("MTPBlock", self.get_submodule("0"))

    def forward(self, stream: Tensor, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One draft: the block's stream [tokens, hc_mult, hidden], and logits [tokens, vocabulary].

        rows [n]: the tokens whose outputs are wanted; all of them where it is None.
        """
        drafted = self.block(stream, step)
        drafted = drafted if rows is None else drafted[rows]
        return drafted, self.block.logits(drafted)
