"""What generation asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from builder.runtime.request import Request


@dataclass(frozen=True)
class Draft:
    """Tokens proposed for one request. chances: what each was drawn from, [vocabulary] each; None: not drawn."""

    tokens: tuple[int, ...] = ()
    chances: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class Computed:
    """What a step of the target computed for one request and stands: positions ``start`` to ``start + rows - 1``.

    first_row: where its rows begin in the step's stream.
    """

    request: Request
    start: int
    rows: int
    first_row: int


class Drafter(Protocol):
    """A method of drafting. It never sees the target's logits, only what stands afterwards.

    The module ``drafting.METHOD`` makes it: ``drafter(model, cache)``.
    """

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """At most ``room[i]`` tokens for each request, which wait for one token each."""
        ...

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """A step of the target is done, and the requests have their new tokens.

        stream [tokens of the step, hc_mult, hidden]: the residual stream before hc_head.
        """
        ...
