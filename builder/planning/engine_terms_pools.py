"""SGLang's cache: one pool for all requests, whose tokens each bring their share of a pool of window rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from builder.components.base.spec import Account, CacheFormat, parts
from builder.components.stage.spec import StageSpec
from builder.planning.engine_terms_pages import ALIGNMENT, BLOCK_TOKENS

WINDOW_SHARE = 0.1
"""Tokens of the window pool for one of the full pool: ``--swa-full-tokens-ratio``, 0.1 for DeepSeek-V4."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a stage. per_token: bytes of one token of the full pool, with its share of the others; fixed:
    bytes of open rows that are there for every request slot, whatever its length.

    Source: SGLang 0.5.23, ``model_executor/pool_configurator.py``.
    """

    per_token: float
    fixed: int

    def bytes_needed(self, length: int) -> int:
        """What the pools take at least to hold one request of ``length`` tokens: whole pages, and every slot's rows."""
        return self.fixed + math.ceil(self.per_token * (-(-length // BLOCK_TOKENS) * BLOCK_TOKENS))

    def longest(self, free: int, most: int) -> int:
        """The longest request that pools of ``free`` bytes hold; 0 if none."""
        tokens = self.tokens(free)
        # A page less where rounding has one that ``bytes_needed`` does not see.
        return min(most, tokens if self.bytes_needed(tokens) <= free else tokens - BLOCK_TOKENS) if tokens else 0

    def tokens(self, free: int) -> int:
        """max_total_num_tokens: whole pages of 256 tokens."""
        return max(0, int((free - self.fixed) / self.per_token)) // BLOCK_TOKENS * BLOCK_TOKENS


def pools_of(stage: StageSpec, form: CacheFormat, slots: int) -> Pools:
    """The pools of a stage for ``slots`` running requests. A drafter is one more layer like the average one there."""
    full = window = 0.0
    fixed, layers = 0, stage.last - stage.first + 1
    target = (member for _, member in stage.members if member.account is not Account.DRAFTER)
    for _, part in (found for member in target for found in parts(member)):
        for rows in part.cache(form):
            if rows.ratio:
                full += _paged(rows.row_bytes, BLOCK_TOKENS // rows.ratio, padded=rows.name == "entries") / rows.ratio
            elif rows.name != "open":
                window += _paged(rows.row_bytes, BLOCK_TOKENS, padded=True)
            else:
                # Rings are powers of two, twice as long where drafts must be taken back.
                ring = (rows.fixed - form.drafts) * (2 if form.drafts else 1)
                if ring < BLOCK_TOKENS // 4:
                    window += ring / BLOCK_TOKENS * rows.row_bytes
                else:
                    filled = (slots + 1) * ring + ring + 1
                    fixed += -(-filled // 128) * 128 * rows.row_bytes
    more = (layers + 1) / layers if form.drafts else 1.0
    return Pools((full + WINDOW_SHARE * window) * more, fixed)


def _paged(row: int, rows: int, *, padded: bool) -> float:
    """Bytes of a row where a page's rows are padded together."""
    return -(-row * rows // ALIGNMENT) * ALIGNMENT / rows if padded else row
