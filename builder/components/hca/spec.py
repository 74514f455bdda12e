"""Heavily compressed attention (paper section 2.3.2): the window, and every compressed entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.attention.spec import AttentionSpec
from builder.components.base.spec import ComponentSpec
from builder.components.compressor.spec import CompressorSpec
from builder.schema.model import ModelConfig


@dataclass(frozen=True, slots=True)
class HeavilyCompressedAttentionSpec(AttentionSpec):
    """Reads the window and all entries, one per ``ratio`` tokens."""

    module: ClassVar[str] = "builder.components.hca.module:HeavilyCompressedAttention"
    counted: ClassVar[str | None] = "hca"

    @classmethod
    def ratio_of(cls, model: ModelConfig) -> int:
        return model.hca_ratio

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        compressor = CompressorSpec(
            self.hidden, self.head_dim, self.ratio, overlap=False, eps=self.eps, formats=self.formats
        )
        return (*AttentionSpec.children(self), ("compressor", compressor))
