"""The MTP stash: the residual stream before hc_head, kept at a fixed address for the drafter (vLLM PR #50312)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Account, ComponentSpec, Origin, Tensor


@dataclass(frozen=True, slots=True)
class MTPStashSpec(ComponentSpec):
    """[max_num_batched_tokens, hc_mult * hidden]; the part that ends the last layer writes its mix into the rows."""

    module: ClassVar[str] = "builder.components.mtp_stash.module:MTPStash"
    account: ClassVar[Account | None] = Account.MTP_STASH
    counted: ClassVar[str | None] = "mtp_stash"

    tokens: int
    streams: int
    hidden: int
    dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        shape = (self.tokens, self.streams * self.hidden)
        return (Tensor("rows", shape, self.dtype, origin=Origin.RUNTIME, values=0),)
