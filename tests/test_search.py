"""Search: the figures of a plan, many at a time; the best of them; and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run

import builder
from builder.planning.search import Search
from builder.planning.search_result import front
from builder.planning.search_space import space_of
from builder.planning.sweep import figures

WIDE = (
    "search.devices=[h200,b200,mi355x]",
    "search.spec=[all]",
    "search.cache=[all]",
    "search.max_num_batched_tokens=[1024,8192]",
    "search.max_num_seqs=[16,64]",
)


def searched(*arguments: str) -> Search:
    config = builder.compose(["task=search", *arguments])
    assert config.search is not None
    search = Search(space_of(config), config.search)
    search.run()
    return search


def as_planned(row: dict[str, Any], *given: str) -> dict[str, Any]:
    """The figures that ``builder.plan`` has for the overrides of a row."""
    return figures(builder.plan(builder.compose(["task=plan", *given, *row["overrides"]])).to_dict())


def assert_as_planned(row: dict[str, Any], *given: str) -> None:
    planned, dp = as_planned(row, *given), row["dp"]
    names = ("limiting_rank", "bytes", "free_bytes", "longest_request", "partition")
    assert {name: row[name] for name in names} == {name: planned[name] for name in names}, row["overrides"]
    assert (row["devices"], row["tokens"], row["requests"]) == (
        planned["ranks"],
        planned["tokens"] * dp,
        planned["requests"] * dp,
    )


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("v4_flash", "builder"),
        ("v4_pro", "builder"),
        ("v4_pro_0813", "builder"),
        ("v4_flash", "vllm"),
        ("v4_flash", "sglang"),
        ("v4_flash", "atom"),
        ("v4_pro", "vllm"),
    ],
)
def test_a_row_has_the_figures_of_its_plan(model: str, engine: str) -> None:
    given = (f"model={model}", f"plan.engine={engine}", "runtime.reserve_bytes=1073741824")
    found = searched(*given, "search.gpus=8", *WIDE).found
    assert len(found) > 200
    for one in random.Random(model).sample(found, 6):
        assert_as_planned(one.row(), *given)


def test_what_does_not_fit_has_the_figures_of_its_plan() -> None:
    search = searched("search.gpus=8", "search.devices=[h100]", "search.cache=[all]", "search.spec=[mtp]")
    assert not search.found
    assert search.nearest is not None
    row = search.nearest.row()
    planned = as_planned(row)
    assert planned["fits"] is False
    assert (row["bytes"], row["free_bytes"]) == (planned["bytes"], planned["free_bytes"])
    cost = builder.plan(builder.compose(["task=plan", *row["overrides"]])).ranks[row["limiting_rank"]]
    assert search.nearest.short == -(cost.headroom or 0)


@pytest.mark.parametrize(
    "given",
    [
        ("model=v4_flash", "parallel.partition=even"),
        ("model=v4_flash", "parallel.shared_expert=replicated", "runtime.weights=bfloat16"),
        ("spec=draft_model", "model@draft=v4_flash", "spec.stash=false"),
        ("model=tiny", "hardware.device=custom", "hardware.memory_bytes=4000000000", "runtime.dtype=float64"),
    ],
)
def test_other_configurations(given: tuple[str, ...]) -> None:
    found = searched(*given, "search.gpus=8", "search.cache=[plain]").found
    assert found
    for one in random.Random(0).sample(found, 4):
        assert_as_planned(one.row(), *(word for word in given if not word.startswith("hardware.device")))


def test_the_document(run: Run) -> None:
    result = run("task=search", "model=v4_flash", "search.gpus=8", "search.requests=64", "output=json")
    assert result.code == 0
    document = result.document
    assert document["looked_at"] == document["legal"] + sum(one["plans"] for one in document["refused"])
    assert document["fitting"] >= len(document["best"]) == 10
    tokens = [row["tokens"] for row in document["best"]]
    assert tokens == sorted(tokens, reverse=True)
    assert all(row["requests"] >= 64 and row["fits"] for row in document["best"])
    assert document["pareto"][-1]["tokens"] == tokens[0]
    assert document["nearest"] is None


@pytest.mark.parametrize(
    ("objective", "name", "sign"),
    [
        ("tokens", "tokens", -1),
        ("requests", "at_once", -1),
        ("devices", "devices", 1),
        ("headroom", "headroom_bytes", -1),
    ],
)
def test_objectives(objective: str, name: str, sign: int) -> None:
    from builder.planning.search_result import document_of

    search = searched("model=v4_flash", "search.gpus=8", f"search.objective={objective}")
    best = document_of(search)["best"][0]
    assert best[name] * sign == min(one.row()[name] * sign for one in search.found)


def test_seats_end_the_requests_that_run_at_once() -> None:
    from builder.planning.search_result import document_of

    line = ("model=v4_flash", "hardware.device=h200", "search.gpus=8", "search.max_num_seqs=[16,64]")
    best = document_of(searched(*line, "search.objective=requests"))["best"][0]
    assert best["max_num_seqs"] == 64
    assert best["at_once"] == min(best["requests"], best["dp"] * 64)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_a_named_engine_reserves_is_in_the_search(engine: str) -> None:
    line = ("model=v4_flash", f"plan.engine={engine}", "hardware.device=rtx_5090", "runtime.max_num_seqs=4")
    given = (*line, "search.counts=[6]", "search.pp=[3]", "search.tp=[2]")

    def fits(length: int, *more: str) -> bool:
        axes = ("task=plan", *line, "pp=3", "tp=2", f"runtime.max_model_len={length}", *more)
        return builder.plan(builder.compose(list(axes))).fits is True

    longest = max(searched(*given, "search.ask=context").found, key=lambda one: one.config.runtime.max_model_len)
    length = longest.config.runtime.max_model_len
    assert 0 < length < 1_048_576
    assert (fits(length), fits(length + 1)) == (True, False)
    held = min(length, 4096)
    least = searched(*given, "search.ask=memory_fraction", f"search.max_model_len={held}").found
    fraction = min(one.config.runtime.memory_fraction for one in least)
    words = (f"runtime.memory_fraction={value:.4f}" for value in (fraction, fraction - 0.0001))
    assert [fits(held, word) for word in words] == [True, False]
    # What does not fit lacks what the plan lacks.
    short = searched(*given, f"search.max_model_len={length + 1}").nearest
    assert short is not None
    row = short.row()
    plan = builder.plan(builder.compose(["task=plan", *line, *row["overrides"]]))
    assert short.short == -(plan.ranks[row["limiting_rank"]].headroom or 0)


def test_no_plan_beats_one_of_the_front() -> None:
    found = searched("model=v4_flash", "search.gpus=8", "search.devices=[h100,h200]").found
    best = front(found)

    def beats(one: Any, other: Any) -> bool:
        mine, theirs = ((x.devices, -x.tokens, -x.longest_request) for x in (one, other))
        same = one.config.hardware.device == other.config.hardware.device
        return same and mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))

    assert {one.config.hardware.device for one in best} == {"h100", "h200"}
    assert not [one for one in best if any(beats(other, one) for other in found)]
    assert {id(one) for one in found if not any(beats(other, one) for other in found)} >= {id(one) for one in best}


def test_nothing_fits(run: Run) -> None:
    result = run("task=search", "search.devices=[rtx_5090]", "search.gpus=4", "output=json")
    assert result.code == 1
    document = result.document
    assert (document["best"], document["fitting"]) == ([], 0)
    assert document["nearest"]["missing_bytes"] > 0
    table = run("task=search", "search.devices=[rtx_5090]", "search.gpus=4")
    missing = f"{document['nearest']['missing_bytes']:,} bytes"
    assert table.code == 1
    assert f"Nothing fits. The nearest lacks {missing}" in table.out


def test_the_smallest_memory_fraction(run: Run) -> None:
    line = ("model=v4_flash", "hardware.device=h200", "search.counts=[4]", "search.gpus=4")
    document = run("task=search", *line, "search.ask=memory_fraction", "search.requests=16", "output=json").document
    row, fraction = document["best"][0], document["answer"]
    assert row["requests"] >= 16
    given = [word for word in row["overrides"] if not word.startswith("runtime.memory_fraction")]
    for value, holds in ((fraction, True), (fraction - 0.0001, False)):
        plan = builder.plan(builder.compose(["task=plan", *line[:2], *given, f"runtime.memory_fraction={value:.4f}"]))
        least = min(rank.capacity.requests for rank in plan.ranks if rank.capacity)
        assert (least * row["dp"] >= 16) is holds


def test_the_fewest_devices(run: Run) -> None:
    document = run("task=search", "hardware.device=h200", "search.ask=devices", "output=json").document
    assert document["answer"] == document["best"][0]["devices"] == min(row["devices"] for row in document["pareto"])
    fewer = run("task=search", "hardware.device=h200", f"search.gpus={document['answer'] - 1}", "output=json")
    assert fewer.code == 1


def test_the_longest_context(run: Run) -> None:
    line = ("model=v4_flash", "hardware.device=h100", "search.gpus=3", "search.requests=48")
    document = run("task=search", *line, "search.ask=context", "output=json").document
    row, length = document["best"][0], document["answer"]
    assert 0 < length < 1_048_576
    assert row["requests"] >= 48
    longer = run("task=search", *line, f"search.max_model_len={length + 1}", "output=json")
    assert longer.code == 1
    assert run("task=search", *line, f"search.max_model_len={length}", "output=json").code == 0


def test_fewer_seats_than_requests(run: Run) -> None:
    result = run("task=search", "model=v4_flash", "search.gpus=1", "search.requests=65", "output=json")
    assert result.document["refused"][0]["reason"] == (
        "runtime.max_num_seqs=64: fewer than the requests that a replica must hold"
    )


REFUSALS = [
    ("hardware=cpu", "hardware=cpu: has no device memory that a deployment could fit in; name another hardware=, or "
     "give search.devices=[h200] or hardware.memory_bytes=N"),
    ("search.gpus=0", "search.gpus=0: is out of range; use at least 1 and at most 65,536"),
    ("search.objective=speed", "search.objective=speed: is not known; use one of tokens, requests, devices, headroom"),
    ("search.ask=price", "search.ask=price: is not known; use one of deployments, memory_fraction, devices, context"),
    ("search.tp=8", "search.tp=8: is no list; write search.tp=[…,…]"),
    ("search.tp=[0,2]", "search.tp=[0, 2]: 0 is out of range; use 1 to 65,536"),
    ("search.tp=[]", "search.tp=[]: is empty; give values, or leave it out"),
    ("search.gpus=4 search.tp=[8]", "search.gpus=4: no pp·tp·dp of search.tp=[8] is a device count from 1 to 4 whose"
     " dp·tp an ep divides; raise search.gpus, or leave a list out"),
    ("search.gpus=4 search.counts=[8,16]", "search.counts=[8, 16]: every count is above the limit, search.gpus=4;"
     " give search.gpus=8, or lower counts"),
    ("search.cache=[fp9]", "search.cache=fp9: is not known; did you mean fp8? use one of plain, fp8, fp8_fp4, all"),
    ("search.shared_expert=[split]", "search.shared_expert=split: is not known; use one of sharded, replicated"),
    ("search.spec=[mtpp]", "search.spec=mtpp: is not known; did you mean mtp? use one of none, ngram, mtp, eagle, "
     "draft_model, dspark, all"),
    ("search.spec=[draft_model]", "search.spec=draft_model: needs a draft, and the configuration has none; "
     "add spec=draft_model model@draft=OPTION, or leave it out"),
    ("search.num_speculative_tokens=[2]", "search.num_speculative_tokens=[2]: search.spec=[none] drafts nothing; "
     "add a method that drafts, such as search.spec=[none,mtp]"),
    ("search.max_model_len=2000000", "search.max_model_len=2000000: v4_pro has max_position_embeddings=1048576; "
     "use at most 1048576"),
    ("search.ask=context search.max_model_len=4096", "search.max_model_len=4096: search.ask=context looks for the "
     "length itself; leave it out"),
    ("search.gpus=4096 search.cache=[all] search.spec=[all] search.max_num_seqs=[1,2,3,4,5,6,7,8,9,10]",
     "task=search: asks for 898,470 plans, above 200,000; give shorter lists, or a lower search.gpus"),
    ("search.devices=[h9000]", "search.devices=h9000: no vendor has such a device; did you mean h200? use one of "),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_limits_that_cannot_be(run: Run, line: str, message: str) -> None:
    result = run("task=search", *line.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"builder: {message}")
    assert message.endswith("use one of ") or result.err == f"builder: {message}\n"


def test_all_that_is_wrong_comes_at_once(run: Run) -> None:
    result = run("task=search", "search.tp=[0]", "search.cache=[x]", "search.devices=[y]", "search.spec=[z]")
    assert result.err.startswith("builder: 4 problems\n")


def test_illegal_plans_are_counted_with_their_reason(run: Run) -> None:
    line = ("task=search", "search.gpus=16", "search.tp=[16]", "search.spec=[none,dspark]", "output=json")
    result = run(*line)
    assert result.code == 1
    reasons = {one["reason"]: one["plans"] for one in result.document["refused"]}
    assert any(reason.startswith("spec=dspark: v4_pro holds no DSpark stages") for reason in reasons), reasons
    assert any(reason.startswith("tp=16: the shared expert's") for reason in reasons)
    assert result.document["nearest"] is not None or result.document["legal"] == 0


def test_a_named_engines_refusals_are_counted() -> None:
    line = ("model=v4_flash", "search.devices=[a100_80gb,h200]", "search.gpus=8", "search.spec=[none,mtp]")
    search = searched(*line, "search.pp=[1,2]", "plan.engine=vllm")
    assert search.looked_at == search.legal + search.refused.total()
    reasons = {reason.partition(":")[0] for reason in search.refused}
    assert {"hardware.device=a100_80gb", "pp=2"} <= reasons
    assert {one.config.hardware.device for one in search.found} == {"h200"}
    assert not [one for one in search.found if one.config.parallel.pp > 1 and one.config.spec.method == "mtp"]
    assert searched(*line, "search.pp=[1,2]").legal > search.legal


def test_devices_and_methods_of_the_users(run: Run) -> None:
    own = Path("mine")
    (own / "hardware").mkdir(parents=True)
    (own / "spec").mkdir()
    device = {"memory_bytes": 400_000_000_000, "arch": "sm_100", "fp8": "e4m3fn", "native_fp4": True, "source": "ours"}
    option = {"vendor": "nvidia", "device": "big", "memory_bytes": None, "offload": "none", "devices": {"big": device}}
    (own / "hardware" / "lab.yaml").write_text(yaml.safe_dump(option))
    (own / "spec" / "mtp5.yaml").write_text("method: mtp\nnum_speculative_tokens: 5\nstash: true\n")
    line = ("--config-dir", "mine", "task=search", "search.devices=[big,h200]", "search.gpus=8", "output=json")
    document = run(*line, "search.spec=[none,mtp5]", "search.top=1000").document
    rows = document["best"]
    assert {row["device"] for row in rows} == {"big", "h200"}
    assert {row["spec"]["num_speculative_tokens"] for row in rows} == {0, 5}
    words = next(row["overrides"] for row in rows if row["device"] == "big" and row["spec"]["method"] == "mtp")
    assert {"hardware=lab", "hardware.device=big", "spec=mtp", "spec.num_speculative_tokens=5"} <= set(words)
    assert run("--config-dir", "mine", "task=plan", *words).code == 0
    # Without the folder there is no such device, and a broken file says so.
    assert "search.devices=big: no vendor has such a device" in run("task=search", "search.devices=[big]").err
    (own / "hardware" / "bad.yaml").write_text("vendor: nvidia\n")
    assert "bad.yaml has no devices to search" in run(*line).err


def test_more_plans_than_can_be_looked_at_are_not_written_down(run: Run) -> None:
    result = run("task=search", "search.gpus=65536", f"search.dp={list(range(1, 400))}".replace(" ", ""))
    words = "task=search: asks for more plans than the limit, 200,000; give shorter lists, or a lower search.gpus"
    assert (result.code, result.err) == (2, f"builder: {words}\n")


def test_it_is_fast() -> None:
    search = searched("search.gpus=24", *WIDE[:3])
    assert search.looked_at > 2_000
    assert search.looked_at / search.seconds > 200, (
        "the target is a thousand a second; this leaves room for a busy machine"
    )
