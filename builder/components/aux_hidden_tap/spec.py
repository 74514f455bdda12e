"""The tap of averaged hidden states that a DSpark drafter reads instead of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Account, ComponentSpec, Origin, SharedSpec, Tensor


@dataclass(frozen=True, slots=True)
class AuxHiddenTapSpec(ComponentSpec):
    """[max_num_batched_tokens, named layers * hidden]: the mean over the streams after each of ``layers``."""

    module: ClassVar[str] = "builder.components.aux_hidden_tap.module:AuxHiddenTap"
    account: ClassVar[Account | None] = Account.AUX_HIDDEN
    counted: ClassVar[str | None] = "aux_hidden_tap"

    tokens: int
    layers: tuple[int, ...]
    hidden: int
    dtype: str

    def mixes(self, path: str) -> dict[int, ComponentSpec]:
        """For each named layer, what ends it in place of a plain mix. path: where the tap stands."""
        return {layer: TappedMixSpec(column, path) for column, layer in enumerate(self.layers)}

    def tensors(self) -> tuple[Tensor, ...]:
        shape = (self.tokens, len(self.layers) * self.hidden)
        return (Tensor("rows", shape, self.dtype, origin=Origin.RUNTIME, values=0),)


@dataclass(frozen=True, slots=True)
class TappedMixSpec(ComponentSpec):
    """Ends a named layer: a plain mix, whose average goes to column ``column`` of the tap at ``tap``."""

    module: ClassVar[str] = "builder.components.aux_hidden_tap.module:TappedMix"

    column: int
    tap: str

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        return (("tap", SharedSpec(self.tap)),)
