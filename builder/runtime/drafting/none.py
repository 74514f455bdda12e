"""No drafting."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Computed, Draft
from builder.runtime.model import Model
from builder.runtime.request import Request


class NoDrafter:
    """Proposes nothing."""

    def __init__(self, model: Model, cache: Cache) -> None:
        pass

    def propose(self, requests: Sequence[Request], room: Sequence[int]) -> list[Draft]:
        """See ``Drafter``."""
        del room
        return [Draft()] * len(requests)

    def observe(self, computed: Sequence[Computed], stream: Tensor) -> None:
        """See ``Drafter``."""


drafter = NoDrafter
