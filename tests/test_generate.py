"""Generation: the tokens do not depend on who else is in the batch, nor on how the prompt is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from models import random_ids, random_model, small
from models import run as logits_of

from builder.runtime.generate import generate_tokens
from builder.runtime.model import Model
from builder.runtime.sampling import Sampler
from builder.schema.groups import GenerateConfig

FLASH = Path(__file__).parent / "data" / "checkpoints" / "tiny-flash"


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(small("runtime.dtype=float64", "runtime.weights=float32", "runtime.max_num_seqs=3"))


def settings(**changed: Any) -> GenerateConfig:
    values = {"max_new_tokens": 12, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True, "stream": False}
    return GenerateConfig(**{**values, **changed})


def greedy_by_hand(model: Model, prompt: list[int], count: int) -> list[int]:
    tokens: list[int] = []
    for _ in range(count):
        ids = prompt + tokens
        logits = logits_of(model.stage, model.cache(1, len(ids)), [ids], [0])
        tokens.append(int(logits[-1].argmax()))
    return tokens


def test_greedy_tokens_are_those_of_the_whole_sequence_each_time(model: Model) -> None:
    prompt = random_ids(37, 260)
    assert generate_tokens(model, [prompt], settings()).token_ids == [greedy_by_hand(model, prompt, 12)]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_prompt_gives_the_same_tokens_alone_and_in_a_batch(model: Model, temperature: float) -> None:
    prompts = [random_ids(count, 260, seed=count) for count in (1, 30, 131, 5, 64)]
    together = generate_tokens(model, prompts, settings(temperature=temperature, top_p=0.9), seed=4).token_ids
    for number, prompt in enumerate(prompts):
        alone = generate_tokens(model, [prompt], settings(temperature=temperature, top_p=0.9), seed=4 + number)
        assert alone.token_ids[0] == together[number]


def test_long_prompts_are_cut_to_what_a_step_may_hold(model: Model) -> None:
    small_steps = random_model(
        small("runtime.dtype=float64", "runtime.weights=float32", "runtime.max_num_batched_tokens=7")
    )
    prompts = [random_ids(40, 260, seed=1), random_ids(11, 260, seed=2)]
    whole, cut = (generate_tokens(one, prompts, settings()) for one in (model, small_steps))
    assert cut.token_ids == whole.token_ids
    assert cut.steps > whole.steps


def test_it_stops_at_the_end_token_unless_told_not_to(model: Model) -> None:
    prompt = random_ids(37, 260)
    free = generate_tokens(model, [prompt], settings()).token_ids[0]
    model.config.model.eos_token_id, before = free[3], model.config.model.eos_token_id
    try:
        stopped = generate_tokens(model, [prompt], settings(ignore_eos=False)).token_ids[0]
        ignored = generate_tokens(model, [prompt], settings(ignore_eos=True)).token_ids[0]
    finally:
        model.config.model.eos_token_id = before
    assert stopped == free[: free.index(free[3]) + 1]
    assert ignored == free


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    sampler = Sampler(temperature=0.7, top_p=1.0, seed=0)
    counts = torch.zeros(5)
    for _ in range(20_000):
        counts[sampler.choose(logits)] += 1
    expected = torch.softmax(logits.double() / 0.7, -1) * 20_000
    chi_square = float(((counts - expected)[:4] ** 2 / expected[:4]).sum())
    assert chi_square < 16.27  # 99.9 percent of three degrees of freedom
    assert counts[4] == 0


def test_top_p_keeps_the_smallest_set_of_that_probability() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    kept = [Sampler(1.0, p, 0).distribution(logits).nonzero().flatten().tolist() for p in (0.1, 0.4, 0.41, 0.7, 0.95)]
    assert kept == [[0], [0], [0, 1], [0, 1], [0, 1, 2, 3]]


def test_among_equals_greedy_takes_the_lowest() -> None:
    assert Sampler(0.0, 1.0, 0).choose(torch.tensor([1.0, 5.0, 2.0, 5.0])) == 1


def test_the_command_prints_one_document(run: Run) -> None:
    arguments = (f"checkpoint={FLASH}", "hardware=cpu", "generate.max_new_tokens=5", "output=json")
    result = run("task=generate", *arguments, "prompt_ids=[[1,2,3],[4,5]]")
    assert result.code == 0
    fields = {"token_ids", "text", "steps", "accepted_per_step", "tokens_per_second", "speculation"}
    assert result.document.keys() == fields
    assert [len(tokens) for tokens in result.document["token_ids"]] == [5, 5]
    flat = run("task=generate", *arguments, "prompt_ids=[1,2,3]").document
    assert flat["token_ids"] == result.document["token_ids"][:1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "prompt: none is given; give one of prompt=, prompt_ids= and prompt_file="),
        (["prompt=hi"], "prompt: the checkpoint has no tokenizer.json to read it with; give prompt_ids=[…]"),
        (["prompt_ids=[]"], "prompt_ids=[]: is no list of token ids; give [1,2,3] or [[1,2],[3]]"),
        (["prompt_ids=[1,200]"], "prompt_ids[0]=200: the vocabulary has 200 tokens; use 0 to 199"),
        (["prompt_ids=[a]"], "prompt_ids=['a']: is no list of token ids; give [1,2,3] or [[1,2],[3]]"),
        (["prompt_ids=[1]", "prompt=hi"], "prompt: prompt and prompt_ids are given together; give one of prompt=, "),
        (["prompt_file=nowhere.txt"], "prompt_file=nowhere.txt: cannot be read: "),
        (
            ["prompt_ids=[1,2]", "generate.max_new_tokens=1023"],
            "prompt_ids[0]: 2 tokens and 1023 new ones are more than runtime.max_model_len=1024; "
            "use generate.max_new_tokens of 1022 or less",
        ),
    ],
)
def test_refusals(run: Run, arguments: list[str], message: str) -> None:
    result = run("task=generate", f"checkpoint={FLASH}", "hardware=cpu", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"builder: {message}")
    assert result.err.count("\n") == 1


def test_a_file_of_prompts_and_its_text(run: Run, tmp_path: Path) -> None:
    vocabulary = {chr(ord("a") + i): i for i in range(26)}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    tokenizer = {
        "version": "1.0",
        "model": words,
        "pre_tokenizer": split,
        "added_tokens": [],
        "decoder": {"type": "Fuse"},
    }
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(FLASH / name)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "prompts.txt").write_text("abc\nhello\n")
    arguments = (f"checkpoint={folder}", "hardware=cpu", "generate.max_new_tokens=4")
    many = run("task=generate", *arguments, "prompt_file=prompts.txt", "output=json").document
    ids = run("task=generate", *arguments, "prompt_ids=[[0,1,2],[7,4,11,11,14]]", "output=json").document
    assert many["token_ids"] == ids["token_ids"]
    assert len(many["text"]) == 2
    shown = run("task=generate", *arguments, "prompt=abc")
    assert shown.out.startswith("abc")
    assert "4 tokens in 4 steps" in shown.out
