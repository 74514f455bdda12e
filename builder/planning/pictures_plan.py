"""One plan in two pictures: what fills the memory of every rank, and what the rest holds at which length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.planning.capacity import BESIDE_THE_POOLS
from builder.planning.engine_reserve import request_bytes
from builder.planning.engine_terms import named_engine
from builder.planning.pictures_style import COLOURS, FAINT, HATCHES, INK, only_words, paper, plain_ticks, settings
from builder.planning.table import gib

if TYPE_CHECKING:
    from builder.planning.document import Plan, RankPlan

GIB = 1 << 30
MOST_BARS, MOST_WIDTH = 32, 16.0
SHORTEST = 10
"""Power of two of the shortest context that is drawn."""

_NAMES = {"mtp_stash": "MTP stash", "aux_hidden": "aux hidden states", "activations": "activations\n(estimate)"}


def memory(plan: Plan) -> Any:
    """Every rank's bytes, stacked, against the memory of the device."""
    with settings():
        ranks = _drawn(plan)
        figure, (axes,) = paper(min(MOST_WIDTH, max(7.5, 3.5 + 0.42 * len(ranks))), 4.8)
        places = range(len(ranks))
        bottoms = [0.0] * len(ranks)
        for name, sizes in _stacks(plan, ranks):
            bars: dict[str, Any] = {"color": COLOURS[name], "edgecolor": "white", "linewidth": 0.5, "width": 0.7}
            bars["hatch"] = HATCHES.get(name)
            axes.bar(places, sizes, bottom=bottoms, label=_label(name, plan, max(sizes)), **bars)
            bottoms = [low + size for low, size in zip(bottoms, sizes, strict=True)]
        _lines(axes, plan)
        shown = list(places)[:: -(-len(ranks) // MOST_BARS)]
        axes.set_xticks(shown, [_place(ranks[at], len(ranks) < len(plan.ranks)) for at in shown])
        axes.set_ylabel("GiB")
        axes.set_xlabel("rank" if len(ranks) == len(plan.ranks) else "stage and its layers (the largest rank of each)")
        axes.set_title(_title(plan), loc="left")
        axes.margins(x=0.02)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, title="largest of a rank")
    return figure


def _drawn(plan: Plan) -> list[RankPlan]:
    if len(plan.ranks) <= MOST_BARS:
        return list(plan.ranks)
    stages: dict[int, RankPlan] = {}
    for rank in plan.ranks:
        stages.setdefault(rank.place.pp, rank)
    return list(stages.values())


def _stacks(plan: Plan, ranks: list[RankPlan]) -> list[tuple[str, list[float]]]:
    names = dict.fromkeys(name for rank in ranks for name in rank.booked)
    sizes = {name: [rank.booked.get(name, 0) / GIB for rank in ranks] for name in names}
    sizes["cache"] = [rank.request_bytes / GIB for rank in ranks]
    if named_engine(plan.config) == "sglang":  # the line of its budget is for what is below: weights and cache
        sizes = dict(sorted(sizes.items(), key=lambda found: found[0] in BESIDE_THE_POOLS))
    return [(name, found) for name, found in sizes.items() if any(found)]


def _label(name: str, plan: Plan, largest: float) -> str:
    size = gib(largest * GIB)
    if name == "cache":
        return f"cache of one request of\n{plan.config.runtime.max_model_len:,} tokens, {size}"
    return f"{_NAMES.get(name, name.replace('_', ' '))}, {size}"


def _lines(axes: Any, plan: Plan) -> None:
    whole, config = plan.config.hardware.total_bytes, plan.config
    if whole is None:
        return
    budget = config.runtime.memory_fraction * whole - config.runtime.reserve_bytes
    axes.axhline(whole / GIB, color=INK, linewidth=1.4, label=f"{config.hardware.device}: {whole / GIB:,.1f} GiB")
    words = f"budget: {config.runtime.memory_fraction:g} of it"
    words += "\nfor weights and cache" if named_engine(config) == "sglang" else ""
    words += f"\nless {config.runtime.reserve_bytes / GIB:,.2f} GiB" if config.runtime.reserve_bytes else ""
    axes.axhline(budget / GIB, color=INK, linewidth=1.2, linestyle="--", label=words)


def _place(rank: RankPlan, stages: bool) -> str:
    return f"{rank.place.pp}\n{rank.layers[0]}-{rank.layers[1] - 1}" if stages else str(rank.place.rank)


def _title(plan: Plan) -> str:
    config = plan.config
    axes = " ".join(f"{axis}={getattr(config.parallel, axis)}" for axis in ("pp", "tp", "ep", "dp"))
    method, layout = config.spec.method, config.cache.layout
    engine = f", plan.engine={named_engine(config)}" if named_engine(config) != "builder" else ""
    return f"{config.model.name} on {config.hardware.device}, {axes},\nspec={method}, cache={layout}{engine}"


def capacity(plan: Plan) -> Any:
    """Requests and tokens that the whole deployment holds at once, over the length of a request."""
    with settings():
        figure, (left, right) = paper(9.6, 4.4, panels=2)
        held = [(length, requests_at(plan, length)) for length in _lengths(plan)]
        shown = [(length, n) for length, n in held if n]
        _curve(left, plan, shown, "requests held at once")
        _curve(right, plan, [(length, n * length) for length, n in shown], "tokens held at once")
        if shown:
            left.legend(loc="lower left", frameon=False, fontsize=9)
        figure.suptitle(_title(plan), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _curve(axes: Any, plan: Plan, points: list[tuple[int, int]], words: str) -> None:
    if not points:
        only_words(axes, "not one request fits")
        return
    values = [value for _, value in points]
    axes.plot([length for length, _ in points], values, color=COLOURS["weights"], linewidth=1.8)
    length = plan.config.runtime.max_model_len
    axes.axvline(length, color=COLOURS["mtp_stash"], linewidth=1.2, linestyle="--", label=f"max_model_len {length:,}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis, values)
    axes.set_xlabel("tokens of a request")
    axes.set_ylabel(words)


def requests_at(plan: Plan, length: int) -> int:
    """Requests of that length that fit at once: the least of any rank, times the replicas."""
    each = [_held(rank, length) for rank in plan.ranks if rank.cache.nbytes(length)]
    return min(each, default=0) * plan.config.parallel.dp


def _held(rank: RankPlan, length: int) -> int:
    # None where the named engine does not let even one in.
    free, one = rank.free or 0, request_bytes(rank.cache, rank.pages or rank.pools, length)
    return max(0, free // rank.cache.nbytes(length)) if one <= free else 0


def _lengths(plan: Plan) -> list[int]:
    most = plan.config.model.max_position_embeddings
    steps = 8
    found = {min(most, round(2 ** (SHORTEST + at / steps))) for at in range(steps * most.bit_length())}
    return sorted({1 << min(SHORTEST, most.bit_length() - 1), most, *(length for length in found if length < most)})
