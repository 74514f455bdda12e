"""SGLang's cache pools in a log, beside what the plan makes of the same formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from builder.engines.logs import GIB, Log
from builder.engines.terms import Term
from builder.planning.document import Plan
from builder.planning.engine_terms_pages import BLOCK_TOKENS
from builder.planning.engine_terms_pools import WINDOW_SHARE, Pools, pools_of

_WINDOW = f"--swa-full-tokens-ratio {WINDOW_SHARE}, in pages of {BLOCK_TOKENS}"
_ROWS: tuple[tuple[str, str, Callable[[int], int], str], ...] = (
    # The log's figure, its name for people, what the formula makes of the tokens of the full pool, and the formula.
    ("window_rows", "window rows", lambda tokens: int(tokens * WINDOW_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS, _WINDOW),
    ("csa_rows", "CSA entries", lambda tokens: tokens // 4, "one per 4"),
    ("hca_rows", "HCA entries", lambda tokens: tokens // 128, "one per 128"),
)


def pool_terms(planned: Plan, log: Log) -> Iterator[Term]:
    """Every figure of the pools; none where the plan has no pools to compare (AMD, ``cache=plain``)."""
    if log.engine != "sglang":
        return
    pools = _pools(planned, log)
    tokens = log.least("pool_tokens") or log.least("tokens")
    for stage in log.stages("pool_token_bytes"):
        logged = log.most("pool_token_bytes", stage=stage)
        ours = pools.get(0 if stage is None else stage)
        if logged is not None:
            words = "a token of the full pool: entries and keys in padded pages, and its share of the window pool"
            yield Term("bytes of a token", "bytes", ours.per_token if ours else None, logged, words, None, stage)
    fixed = log.most("open_fixed_gib")
    if fixed is not None:
        ours = max((one.fixed for one in pools.values()), default=None)
        words = "open HCA rows of every request slot: slots are --max-running-requests + 1, runtime.max_num_seqs here"
        yield Term("open HCA rows", "bytes", ours, round(fixed * GIB), words)
    shared = log.least("pools_gib")
    if shared is not None:
        ours = min((rank.pool_bytes for rank in planned.ranks if rank.free is not None), default=None)
        words = "fraction of the memory less the loaded weights; activations and graphs come on top in SGLang"
        yield Term("memory of all pools", "bytes", ours, round(shared * GIB), words)
    if tokens is None:
        return
    for name, title, rows, formula in _ROWS:
        logged = log.least(name)
        if logged is not None:
            words = f"of the log's {int(tokens):,} tokens: {formula}"
            yield Term(title, "rows", rows(int(tokens)), logged, words)


def _pools(planned: Plan, log: Log) -> dict[int, Pools]:
    # By stage, whatever engine the plan names; for the request slots that the log has, where it says so.
    config = planned.config
    if config.hardware.vendor != "nvidia" or config.cache.layout == "plain":
        return {}
    slots = int(log.least("requests") or config.runtime.max_num_seqs)
    stages = planned.assembly.stages
    return {at: pools_of(stage, planned.assembly.cache_format, slots) for at, stage in enumerate(stages)}


def pool_tokens(planned: Plan, log: Log) -> int | None:
    """max_total_num_tokens by the same formulas; None where there is nothing to compare."""
    pools = _pools(planned, log)
    free = [(pools[rank.place.pp], rank.pool_bytes) for rank in planned.ranks if pools and rank.free is not None]
    return min((one.tokens(size) for one, size in free), default=None)
