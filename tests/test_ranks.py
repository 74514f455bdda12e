"""Many ranks give what one process gives: the same tokens, the known outputs, and bytes that follow from shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import FLASH, FP4, config_of, tensors_of, write
from worlds import Troupe, troupe

import builder
from builder.assembly.stages import assemble
from builder.components.base.module import Component
from builder.components.base.spec import Axis, Join, walk
from builder.runtime.jobs import JOBS
from builder.runtime.model import Model, open_model
from builder.runtime.ranks.groups import Group
from builder.runtime.ranks.joins import Joiner
from builder.runtime.ranks.pipeline import Pipeline
from builder.runtime.request import Request
from builder.runtime.sampling import Sampler
from builder.runtime.schedule import Queue
from builder.runtime.tasks import generate

EXACT = ("task=generate", "hardware=cpu", "runtime.dtype=float64", "runtime.weights=float32")
PROMPTS = [[(7 * i + 3 * n) % 97 for i in range(length)] for n, length in enumerate((1, 33, 150, 16, 5))]
NEW = 14
METHODS = ["spec=none", "spec=mtp spec.num_speculative_tokens=3", "spec=ngram"]
SAMPLED = "generate.temperature=0.9 generate.top_p=0.95 seed=3"

SPLITS = [
    "pp=2",
    "pp=3",
    "pp=4",
    "tp=2",
    "tp=4",
    "dp=2",
    "tp=2 ep=2",
    "tp=4 ep=2",
    "tp=4 ep=4",
    "dp=2 ep=2",
    "dp=4 ep=4",
    "dp=3 pp=2",
    "dp=2 tp=2 ep=4",
    "pp=2 tp=2",
    "pp=2 dp=2 ep=2",
    "pp=2 tp=4 ep=4",
    "pp=4 tp=2 ep=2",
    "pp=2 tp=2 dp=2 ep=4",
    "pp=2 tp=2 parallel.shared_expert=replicated",
    "pp=2 parallel.partition=[1,5]",  # a hash layer on the second stage
    "pp=2 parallel.microbatch_tokens=7",
    "pp=3 runtime.max_num_seqs=2",
    "dp=2 ep=2 runtime.max_num_seqs=1",
    "tp=2 kernels=compiled ep=2",
]


@pytest.fixture(scope="module")
def actors() -> Iterator[Troupe]:
    with troupe(8) as found:
        yield found


def composed(checkpoint: Path, words: str) -> Any:
    settings = (f"generate.max_new_tokens={NEW}", "generate.ignore_eos=true", f"checkpoint={checkpoint}")
    return builder.compose([*EXACT, *settings, f"prompt_ids={PROMPTS}", *words.split()])


def tokens_of(actors: Troupe, checkpoint: Path, words: str) -> Any:
    return actors.play(composed(checkpoint, words), JOBS["generate"])[0]["token_ids"]


def plain(checkpoint: Path, words: str = "") -> Any:
    return generate(composed(checkpoint, words), PROMPTS)["token_ids"]


def combinations() -> list[tuple[str, str, str]]:
    """Each split once in the usual run, with methods and sampling in turn; all of them for `-m slow`."""
    found: list[Any] = []
    for number, split in enumerate(SPLITS):
        for index, method in enumerate(METHODS):
            for sampled in ("", SAMPLED):
                usual = (index, bool(sampled)) == (number % 3, number % 4 == 3)
                marks = () if usual else (pytest.mark.slow,)
                found.append(pytest.param(split, method, sampled, marks=marks))
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {sampled: plain(FLASH, sampled) for sampled in ("", SAMPLED)}


@pytest.mark.parametrize(("split", "method", "sampled"), combinations())
def test_tokens_are_those_of_one_process(
    actors: Troupe, expected: dict[str, Any], split: str, method: str, sampled: str
) -> None:
    # Drafts change which random numbers are drawn: sampled tokens of a method are compared with its own single process.
    wanted = expected[sampled] if not sampled or method == "spec=none" else plain(FLASH, f"{method} {sampled}")
    assert tokens_of(actors, FLASH, f"{split} {method} {sampled}") == wanted


@pytest.mark.parametrize("split", ["tp=2", "tp=4 pp=2"])
def test_a_vocabulary_that_does_not_divide(actors: Troupe, tmp_path: Path, split: str) -> None:
    odd = 197
    tensors = {
        name: tensor[:odd] if name in ("embed.weight", "head.weight") or name.endswith("tid2eid") else tensor
        for name, tensor in tensors_of(FLASH).items()
    }
    folder = write(tmp_path / "odd", {**config_of(FLASH), "vocab_size": odd}, tensors)
    assert tokens_of(actors, folder, f"{split} spec=mtp") == plain(folder)


@pytest.mark.parametrize("split", ["tp=2", "pp=2", "dp=2 ep=2"])
def test_a_draft_model_is_divided_like_the_target(actors: Troupe, split: str) -> None:
    words = f"spec=draft_model spec.checkpoint={FP4} model@draft=custom draft.config={FP4}/config.json"
    found = tokens_of(actors, FLASH, f"{split} {words}")
    assert found == plain(FLASH)


@pytest.mark.parametrize(
    ("checkpoint", "split"),
    [
        (FLASH, "pp=3"),
        (FLASH, "tp=2"),
        (FLASH, "tp=2 ep=2"),
        (FLASH, "pp=2 tp=2 dp=2 ep=4"),
        (FP4, "pp=2 dp=2 ep=2"),
        (FP4, "tp=2 runtime.weights=float32"),  # blocks of FP8 scales of this size do not divide
    ],
    ids=str,
)
def test_known_outputs_in_float32(actors: Troupe, checkpoint: Path, split: str) -> None:
    config = builder.compose(
        ["task=verify", "hardware=cpu", "spec=mtp", f"checkpoint={checkpoint}", *split.split(), *ROOM]
    )
    document = actors.play(config, JOBS["verify"])[0]
    assert document["ok"], document
    assert len(document["max_abs_diff"]) == 7


ROOM = ["runtime.max_num_batched_tokens=8192"]


def traffic(model: Model) -> dict[str, Any]:
    """What every rank sent during one generation."""
    document = JOBS["generate"](model)
    peers: Any = model.peers
    return {"steps": document["steps"] if document else 0, **peers.sent}


def test_bytes_between_stages_are_the_documented_ones(actors: Troupe) -> None:
    config = composed(FLASH, "pp=3 spec=none")
    sent = actors.play(config, traffic)
    tokens = sum(map(len, PROMPTS)) + len(PROMPTS) * (NEW - 1)
    per_token = builder.plan(config).to_dict()["messages"]["bytes_per_token"]
    assert per_token == 4 * 64 * 8  # hc_mult streams of 64 float64
    assert [one["stream"] for one in sent] == [tokens * per_token, tokens * per_token, 0]
    # Decisions: two counts and a token for every request and pass that completes, to each stage before.
    assert [one["decided"] for one in sent] == [0, 0, 2 * len(PROMPTS) * NEW * 3 * 8]


@pytest.mark.parametrize("words", ["tp=2", "tp=2 parallel.shared_expert=replicated", "tp=2 ep=2"])
def test_bytes_of_tensor_parallelism_are_the_documented_ones(actors: Troupe, words: str) -> None:
    config = composed(FLASH, f"{words} generate.max_new_tokens=1 prompt_ids=[[1,2,3,4,5,6,7]]")
    tokens, hidden, layers, exact = 7, 64, 6, 8
    spread = "ep=2" in words
    embedded = tokens * hidden * 4  # as the table is stored
    of_layer = tokens * hidden * exact * (2 + ("replicated" not in words))  # attention, routed and shared experts
    logits = 200 // 2 * exact
    sent = actors.play(config, traffic)
    assert [one["tensor_parallel"] for one in sent] == [embedded + layers * of_layer + logits] * 2
    assert all(bool(one["expert_parallel"]) == spread for one in sent)


def chosen_experts(model: Model) -> list[torch.Tensor]:
    """The experts of every token in every layer's first pass: [tokens, active] each."""
    seen: list[torch.Tensor] = []
    for name, module in model.stage.named_modules():
        if name.endswith("ffn.gate"):
            module.register_forward_hook(lambda _, given, output: seen.append(output[0]))
    JOBS["generate"](model)
    return seen


def test_bytes_of_expert_parallelism_are_the_documented_ones(actors: Troupe) -> None:
    words = "generate.max_new_tokens=1 prompt_ids=[[1,2,3,4,5,6,7]]"
    layers = chosen_experts(open_model(composed(FLASH, words)))
    sent = actors.play(composed(FLASH, f"{words} tp=2 ep=2"), traffic)
    hidden, active, held = 64, 3, 4
    there, back, table = hidden * 8 + active * (4 + 8), hidden * 8, (3 + 2) * 8
    for rank, (mine, others) in enumerate([(slice(0, 4), slice(4, 7)), (slice(4, 7), slice(0, 4))]):
        owners = [chosen // held for chosen in layers]
        asked = sum(int((owner[mine] == 1 - rank).any(-1).sum()) for owner in owners)
        served = sum(int((owner[others] == rank).any(-1).sum()) for owner in owners)
        assert sent[rank]["expert_parallel"] == asked * there + served * back + len(layers) * table


def test_decoding_requests_are_spread_over_as_many_passes_as_there_are_stages() -> None:
    requests = [Request(n, [1, 2, 3], Sampler(0.0, 1.0, 0), 5, frozenset()) for n in range(6)]
    queue = Queue(requests, slots=6, budget=100, stages=3)
    (first,) = [queue.next()]
    assert [len(work.tokens) for work in first] == [3] * 6
    assert queue.next() == []
    for work in first:
        work.request.take([9])
    queue.settle(first)
    passes = [queue.next() for _ in range(4)]
    assert [len(works) for works in passes] == [2, 2, 2, 0]
    assert {work.request.number for works in passes for work in works} == set(range(6))


def test_parts_of_a_prompt_follow_one_another_without_waiting() -> None:
    request = Request(0, list(range(10)), Sampler(0.0, 1.0, 0), 5, frozenset())
    queue = Queue([request], slots=1, budget=4, stages=2)
    passes = [queue.next() for _ in range(4)]
    assert [[work.tokens for work in works] for works in passes] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]], []]
    assert [works[0].completes for works in passes[:3]] == [False, False, True]


def test_only_the_first_stage_embeds_and_only_the_last_has_the_head() -> None:
    config = composed(FLASH, "pp=3 spec=mtp")
    stages = [builder.build(config, rank) for rank in range(3)]
    held = [
        {name for name, _ in stage.named_children()} & {"embed", "hc_head", "head", "mtp", "norm"} for stage in stages
    ]
    assert held == [{"embed"}, set(), {"hc_head", "head", "mtp", "norm"}]
    assert [(stage.spec.reads, stage.spec.writes) for stage in stages] == [
        ("ids", "stream"),
        ("stream", "stream"),
        ("stream", "logits"),
    ]


def test_a_stage_sends_streams_of_one_shape_only() -> None:
    pipeline = Pipeline([0, 1], 0, (4, 64), torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"stage 0 sends \[tokens, \*\(4, 64\)\] in torch.float32, not \(3, 64\)"):
        pipeline.send(torch.zeros(3, 64))


@pytest.mark.parametrize("words", ["tp=2 spec=mtp", "tp=4 ep=4", "tp=2 ep=2 parallel.shared_expert=replicated"])
def test_every_part_with_a_divided_input_is_joined(words: str) -> None:
    """What sums over a divided dimension gives partial sums: some declaration above it has to say how they join."""
    assembly = assemble(composed(FLASH, words))
    shards = assembly.shards(assembly.place(0))
    modules = [module for module in builder.build(assembly.config).modules() if isinstance(module, Component)]
    joined = {pair for module in modules for pair in module.spec.joins()}
    cut = {split.axis for one in walk(assembly.stages[0]) for split in one.tensor.splits if shards.ways(split)[0] > 1}
    assert cut <= {axis for axis, _ in joined} | {Axis.HEADS}
    assert (Axis.HEADS, Join.SUM) in joined


class _Whole(Group):
    """A group of one that stands for two."""

    def __init__(self) -> None:
        self.size, self.index, self.sent = 2, 0, 0


def test_nothing_is_hooked_where_nothing_is_divided() -> None:
    assembly = assemble(composed(FLASH, ""))
    stage = builder.build(assembly.config)
    assert Joiner(assembly.shards(assembly.place(0)), None, None).join(stage) == 0
    divided = assemble(composed(FLASH, "tp=2"))
    stage = builder.build(divided.config)
    assert Joiner(divided.shards(divided.place(0)), _Whole(), None).join(stage) > 0
