"""What the three attention kinds have in common: one shared key-value head, a window, grouped output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from builder.components.base.spec import Axis, CacheFormat, CacheRows, ComponentSpec, Split, Tensor
from builder.components.grouped_output.spec import GroupedLinearSpec
from builder.components.linear.spec import Cut, Formats, LinearSpec
from builder.components.norm.spec import RMSNormSpec
from builder.components.rotary.spec import RotarySpec
from builder.schema.model import ModelConfig

FP8_ENTRY_SCALE = 64
"""Columns of a cache entry that share one scale byte in FP8."""


@dataclass(frozen=True, slots=True)
class AttentionSpec(ComponentSpec):
    """Multi-query attention over one 'K = V' head of ``head_dim``, with a sink per query head (paper section 2.3).

    ``window`` tokens back are always visible; ``ratio`` is the compression of what lies further back (0: nothing).
    """

    module: ClassVar[str] = "builder.components.attention.module:Attention"

    hidden: int
    heads: int
    head_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    ratio: int
    eps: float
    rotary: RotarySpec
    formats: Formats

    @classmethod
    def of(cls, model: ModelConfig, formats: Formats, exact_dtype: str) -> Self:
        """This kind of attention as ``model`` has it; ``exact_dtype`` is that of the rotary frequencies."""
        ratio = cls.ratio_of(model)
        return cls(
            hidden=model.hidden_size,
            heads=model.num_attention_heads,
            head_dim=model.head_dim,
            q_rank=model.q_lora_rank,
            o_groups=model.o_groups,
            o_rank=model.o_lora_rank,
            window=model.sliding_window,
            ratio=ratio,
            eps=model.rms_norm_eps,
            rotary=RotarySpec.of(model, compressed=ratio > 0, dtype=exact_dtype),
            formats=formats,
            **cls.extras(model),
        )

    @classmethod
    def ratio_of(cls, model: ModelConfig) -> int:
        """Tokens per compressed entry of this kind; 0 where nothing is compressed."""
        del model
        return 0

    @classmethod
    def extras(cls, model: ModelConfig) -> dict[str, Any]:
        """Sizes that only this kind has, by field."""
        del model
        return {}

    def tensors(self) -> tuple[Tensor, ...]:
        split = Split(0, Axis.HEADS, self.heads, "num_attention_heads")
        return (Tensor("attn_sink", (self.heads,), self.formats.kept, (split,)),)

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        heads = Cut(Axis.HEADS, self.heads, "num_attention_heads")
        groups = Cut(Axis.HEADS, self.o_groups, "o_groups")
        linear, plain = self.formats.linear, self.formats.plain
        inner = self.o_groups * self.o_rank
        return (
            ("wq_a", LinearSpec(self.q_rank, self.hidden, linear)),
            ("q_norm", RMSNormSpec(self.q_rank, self.eps, plain)),
            ("wq_b", LinearSpec(self.heads * self.head_dim, self.q_rank, linear, rows=heads)),
            ("wkv", LinearSpec(self.head_dim, self.hidden, linear)),
            ("kv_norm", RMSNormSpec(self.head_dim, self.eps, plain)),
            ("rotary", self.rotary),
            ("wo_a", GroupedLinearSpec(inner, self.heads * self.head_dim // self.o_groups, linear, rows=groups)),
            ("wo_b", LinearSpec(self.hidden, inner, linear, columns=groups)),
        )

    def cache(self, form: CacheFormat) -> tuple[CacheRows, ...]:
        row = self._row(form)
        window = replace(row, name="window", fixed=self.window + form.drafts)
        return (window, replace(row, name="entries", ratio=self.ratio)) if self.ratio else (window,)

    def _row(self, form: CacheFormat) -> CacheRows:
        # Plain, or FP8 with the rotary part in 16 bits and a scale byte per 64.
        features, rope = self.head_dim, self.rotary.dim
        if form.layout == "plain":
            return CacheRows("", features, form.entry_dtype, features=features, rope=rope)
        nope = features - rope
        size = nope + 2 * rope + -(-nope // FP8_ENTRY_SCALE)
        return CacheRows("", -(-size // 8) * 8, "U8", code="fp8_entry", features=features, rope=rope)
