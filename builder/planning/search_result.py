"""What came of a search, as the JSON document, and its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from builder.planning.engine_terms import named_engine
from builder.planning.search_found import Found

if TYPE_CHECKING:
    from builder.planning.search import Search

SCHEMA_VERSION = 1


def document_of(search: Search) -> dict[str, Any]:
    """The JSON document of ``task=search``."""
    from builder.planning.search import order_of

    settings, config = search.settings, search.space.config
    best = sorted(search.found, key=order_of(settings))[: settings.top]
    nearest = None if search.found or search.nearest is None else search.nearest
    return {
        "schema": SCHEMA_VERSION,
        "model": config.model.name,
        "ask": settings.ask,
        "objective": settings.objective if settings.ask == "deployments" else settings.ask,
        "limits": {
            "gpus": search.space.gpus,
            "max_model_len": None if settings.ask == "context" else search.space.runtimes[0].max_model_len,
            "requests": settings.requests,
        },
        "looked_at": search.looked_at,
        "legal": search.legal,
        "fitting": len(search.found),
        "refused": [{"reason": reason, "plans": plans} for reason, plans in search.refused.most_common()],
        "answer": _answer(settings.ask, best),
        "best": [found.row() for found in best],
        "pareto": [found.row() for found in front(search.found)],
        "nearest": None if nearest is None else {**nearest.row(), "missing_bytes": nearest.short},
        "timing": {"seconds": round(search.seconds, 3), "plans_per_second": _rate(search)},
        "notes": list(_notes(search, best)),
    }


def _rate(search: Search) -> int:
    return round(search.looked_at / search.seconds) if search.seconds else 0


def _answer(ask: str, best: list[Found]) -> float | None:
    if not best or ask == "deployments":
        return None
    runtime = best[0].config.runtime
    answers = {"memory_fraction": runtime.memory_fraction, "devices": best[0].devices, "context": runtime.max_model_len}
    return answers[ask]


def front(found: Iterable[Found]) -> list[Found]:
    """Those that no other of the same device beats: with fewer devices, more tokens and a longer single request."""

    def order(one: Found) -> tuple[Any, ...]:
        return one.config.hardware.device, one.devices, -one.tokens, -one.longest_request, one.short

    kept: list[Found] = []
    for _, group in groupby(sorted(found, key=order), key=lambda one: one.config.hardware.device):
        own: list[Found] = []
        for one in group:
            if not any(o.tokens >= one.tokens and o.longest_request >= one.longest_request for o in own):
                own.append(one)
        kept += own
    return kept


def _notes(search: Search, best: list[Found]) -> Iterator[str]:
    settings = search.settings
    yield "tokens and requests are of the whole deployment: dp replicas, each with what its fullest rank has room for"
    engine = named_engine(search.space.config)
    if engine != "builder":
        yield f"plan.engine={engine}: its terms are in the bytes, and what it refuses is among the refused"
    kept = [f"{name}={value}" for name, value in _as_configured(search).items()]
    if kept:
        yield f"as configured: {', '.join(kept)}; lists such as search.cache=[all] look wider"
    if settings.requests is not None and settings.requests > 1:
        yield (
            f"{settings.requests} requests are divided among dp replicas; each is given its full length, and all are "
            "in the cache at once (physical)"
        )
    if engine in ("vllm", "sglang"):
        yield (
            f"tokens and requests are physical, what the bytes hold at once; of what plan.engine={engine} reserves, a "
            "plan that fits lets in one request of max_model_len at the least (task=plan has its admission)"
        )
    if any(found.config.parallel.tp > 1 for found in best):
        yield "tp does not divide the cache: there is one KV head, every tp rank holds it whole"
    yield "activations are estimated, all other bytes exact; runtime.memory_fraction leaves room for the rest"
    yield "the front compares deployments of one device: fewest devices, most tokens, longest single request"


def _as_configured(search: Search) -> dict[str, object]:
    settings, config = search.settings, search.space.config
    values: dict[str, tuple[object, object]] = {
        "hardware.device": (settings.devices, config.hardware.device),
        "cache": (settings.cache, config.cache.layout),
        "spec": (settings.spec, config.spec.method),
        "runtime.max_num_batched_tokens": (settings.max_num_batched_tokens, config.runtime.max_num_batched_tokens),
        "runtime.max_num_seqs": (settings.max_num_seqs, config.runtime.max_num_seqs),
    }
    return {name: value for name, (given, value) in values.items() if given is None}


def points(search: Search) -> list[dict[str, Any]]:
    """What the picture of a search shows: every plan that fits, the front marked."""
    marked = {id(one) for one in front(search.found)}
    return [
        {
            "group": one.config.hardware.device,
            "devices": one.devices,
            "tokens": one.tokens,
            "longest_request": one.longest_request,
            "front": id(one) in marked,
            "label": " ".join(f"{axis}={getattr(one.config.parallel, axis)}" for axis in ("pp", "tp", "ep", "dp")),
        }
        for one in search.found
    ]


def report(search: Search, document: dict[str, Any]) -> None:
    """Draw and write what ``report.*`` asks for."""
    from builder.planning import html, pictures
    from builder.planning.document import plan

    config = search.space.config
    if config.report is None:
        return
    from builder.planning.search import order_of

    # Where nothing fits, what came nearest shows what is missing.
    first = min(search.found, key=order_of(search.settings), default=search.nearest)
    if config.report.plot == "sweep":
        pictures.save(config.out, "sweep", lambda: pictures.sweep_figure(points(search), document["model"]))
    elif config.report.plot is not None and first is not None:
        pictures.save_plan(plan(first.config))
    if config.report.html is not None:
        html.write_search(config.report.html, document, points(search))
