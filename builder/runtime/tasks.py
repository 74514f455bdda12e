"""The tasks that compute: from a configuration to an outcome."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.runtime import bench_stash, show
from builder.runtime.drafting.choice import check_can_draft
from builder.runtime.jobs import streams
from builder.runtime.ranks.across import compute
from builder.runtime.requests import Prompts, read_prompts
from builder.runtime.verify import read_expected
from builder.schema.config import BuildConfig
from builder.schema.fields import field_problems
from builder.schema.groups import GenerateConfig

MOST_RANDOM_TOKENS = 1 << 16
"""Room for the inputs of a comparison with transformers."""


def run_verify(config: BuildConfig) -> Outcome:
    """Compare a checkpoint's outputs with known ones; the answer is whether all are within the tolerance."""
    settings = config.verify
    assert settings is not None, "task=verify brings its keys"
    checkpoint, tokens = _checkpoint(config), MOST_RANDOM_TOKENS
    if settings.against != "transformers":
        tokens = read_expected(checkpoint).input_ids.numel()
    document = compute(_room_for(config, tokens))
    differences = [math.inf if one is None else one for one in document["max_abs_diff"].values()]
    row = {"largest_difference": max(differences)}
    return Outcome(document, 0 if document["ok"] else 1, lambda: show.comparison(document), "verify.json", row)


def _room_for(config: BuildConfig, tokens: int) -> BuildConfig:
    # The known inputs go through in one step, whatever a step may hold otherwise: the stash has room for them.
    most = max(config.runtime.max_num_batched_tokens, tokens)
    return dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, max_num_batched_tokens=most))


def run_generate(config: BuildConfig) -> Outcome:
    """Generate from the prompts of a configuration."""
    assert config.generate is not None, "task=generate brings its keys"
    check_can_draft(config)
    _checkpoint(config)
    prompts = read_prompts(config)
    found = compute(_with_ids(config, prompts))
    texts = [prompts.text(tokens) for tokens in found["token_ids"]]
    document = {"token_ids": found.pop("token_ids"), "text": None if None in texts else texts, **found}
    shown = streams(config, prompts)
    row = {name: document[name] for name in ("steps", "accepted_per_step", "tokens_per_second")}
    return Outcome(document, 0, lambda: show.generation(document, texts_shown=shown), "generate.json", row)


def run_bench(config: BuildConfig) -> Outcome:
    """Measure; the answer is always yes. bench.what=stash needs no checkpoint and has one rank, forward does."""
    settings = config.bench
    assert settings is not None, "task=bench brings its keys"
    if settings.what == "stash":
        document = bench_stash.measure(config)
        return Outcome(document, 0, lambda: show.stash_table(document), "bench.json")
    _checkpoint(config)
    document = compute(config)
    row = {f"{name}_tokens_per_second": document[name]["tokens_per_second"] for name in ("prefill", "decode")}
    return Outcome(document, 0, lambda: show.forward_speed(document), "bench.json", row)


def _checkpoint(config: BuildConfig) -> str:
    if config.checkpoint is None:
        raise ConfigError([Problem("checkpoint", None, f"task={config.task} needs weights", "give checkpoint=DIR")])
    return config.checkpoint


def _with_ids(config: BuildConfig, prompts: Prompts) -> BuildConfig:
    return dataclasses.replace(config, prompt=None, prompt_file=None, prompt_ids=prompts.ids)


def generate(config: BuildConfig, prompt_ids: list[list[int]], max_new_tokens: int | None = None) -> dict[str, Any]:
    """Generate from token ids in Python: the document of ``task=generate`` without text.

    config: of ``compose(["task=generate", "checkpoint=DIR", …])``. Raises ConfigError, CheckpointError and RankError.
    """
    settings = config.generate or GenerateConfig(
        max_new_tokens=128, temperature=0.0, top_p=1.0, ignore_eos=False, stream=False
    )
    if max_new_tokens is not None:
        settings = dataclasses.replace(settings, max_new_tokens=max_new_tokens)
    wrong = list(field_problems(settings, "generate"))
    if wrong:
        raise ConfigError(wrong)
    asked = dataclasses.replace(config, task="generate", output="json", prompt=None, prompt_file=None)
    asked = dataclasses.replace(asked, prompt_ids=prompt_ids, generate=settings)
    return compute(_with_ids(asked, read_prompts(asked)))
