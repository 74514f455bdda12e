"""The DSpark drafter."""

from __future__ import annotations

from builder.components.base.module import Component
from builder.components.decoder_layer.module import DecoderLayer
from builder.components.dspark_drafter.spec import DSparkBlockSpec, DSparkDrafterSpec


class DSparkBlock(DecoderLayer[DSparkBlockSpec]):
    """A window-attention block; the first has ``main_proj``, the last the Markov and confidence heads."""


class DSparkDrafter(Component[DSparkDrafterSpec]):
    """Holds its blocks as ``0`` to ``2``. Its forward is not public in enough detail to be computed."""
