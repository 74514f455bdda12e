"""One rank of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.assembly.measure import CacheCost
from builder.assembly.stages import RankPlace
from builder.planning.capacity import (
    ACTIVATIONS,
    BESIDE_THE_POOLS,
    GIVEN,
    Capacity,
    admission,
    admission_in_pools,
)
from builder.planning.engine_reserve import request_bytes
from builder.planning.engine_terms import Term
from builder.planning.engine_terms_pages import Pages
from builder.planning.engine_terms_pools import Pools

_SURENESS = ("exact", "measured", "estimated")


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank. booked: bytes by report line, disjoint; budget, free: None on cpu, free negative when too large."""

    place: RankPlace
    layers: tuple[int, int]
    components: dict[str, int]
    parameters: int
    booked: dict[str, int]
    cache: CacheCost
    budget: int | None
    free: int | None
    longest: int
    capacity: Capacity | None
    absent: dict[str, str]
    terms: tuple[Term, ...] = ()
    load_peak: int = 0
    pages: Pages | None = None
    pools: Pools | None = None

    @property
    def nbytes(self) -> int:
        """What the rank needs before any request."""
        return sum(self.booked.values())

    @property
    def request_bytes(self) -> int:
        """What one request of max_model_len needs: its cache, or what the named engine reserves for it."""
        return request_bytes(self.cache, self.pages or self.pools, self.longest)

    @property
    def headroom(self) -> int | None:
        """Bytes left when one request of max_model_len is in the cache."""
        return None if self.free is None else self.free - self.request_bytes

    @property
    def fits(self) -> bool | None:
        """One request of max_model_len fits."""
        return None if self.headroom is None else self.headroom >= 0

    def to_dict(self) -> dict[str, Any]:
        """As the report has it."""
        place = self.place
        return {
            "rank": place.rank,
            "pp": place.pp,
            "dp": place.dp,
            "tp": place.tp,
            "layers": list(self.layers),
            "components": self.components,
            "absent": self.absent,
            "parameters": self.parameters,
            "bytes": self.booked,
            "cache": {"bytes_per_request": self.cache.fixed, "bytes_per_token": self.cache.per_token},
            "exactness": self.exactness,
            "fits": self.fits,
            "free_bytes": self.free,
            "capacity": self.capacity.to_dict() if self.capacity else None,
            "request_bytes": self.request_bytes,
            "admission": self.admission,
            "load_peak_bytes": self.load_peak,
        }

    @property
    def exactness(self) -> dict[str, str]:
        """How sure each line is: exact, measured, estimated, or given by the user."""
        sure = dict.fromkeys((*self.booked, "cache"), "exact") | dict.fromkeys(GIVEN, "given")
        sure |= {ACTIVATIONS: "estimated"}
        for term in self.terms:  # of several on one line, the least sure
            known = sure.get(term.line, "exact")
            sure[term.line] = max(known, term.exactness, key=_SURENESS.index)
        return sure

    @property
    def admission(self) -> dict[str, int] | None:
        """What the rank admits when a request reserves its worst case, by the named engine's own count."""
        if self.free is None:
            return None
        if self.pools is not None:
            return admission_in_pools(self.longest, self.cache, self.pools, self.free)
        return admission(self.longest, self.cache, self.pages, self.free)

    @property
    def pool_bytes(self) -> int:
        """What SGLang's pools share, whatever engine is named: the fraction holds weights and cache, no more."""
        assert self.budget is not None, "pools are of a device with memory"
        return self.budget - self.static_bytes

    @property
    def static_bytes(self) -> int:
        """The bytes that SGLang's fraction holds; the others are beside it."""
        return sum(size for line, size in self.booked.items() if line not in BESIDE_THE_POOLS)
