"""The head of the hyper-connections: the residual streams become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import ComponentSpec, Tensor


@dataclass(frozen=True, slots=True)
class HCHeadSpec(ComponentSpec):
    """A weighted sum over the streams, without Sinkhorn: [tokens, streams, hidden] -> [tokens, hidden]."""

    module: ClassVar[str] = "builder.components.hc_head.module:HCHead"
    counted: ClassVar[str | None] = "hc_head"
    joint: ClassVar[str] = "_"

    streams: int
    hidden: int
    eps: float
    norm_eps: float
    dtype: str

    def tensors(self) -> tuple[Tensor, ...]:
        k = self.streams
        return (
            Tensor("fn", (k, k * self.hidden), self.dtype),
            Tensor("base", (k,), self.dtype),
            Tensor("scale", (1,), self.dtype),
        )
