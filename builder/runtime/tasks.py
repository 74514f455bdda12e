"""The tasks that compute: from a configuration to an outcome."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from typing import Any

from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.runtime import bench_forward, bench_stash, show
from builder.runtime.drafting.choice import check_can_draft
from builder.runtime.generate import generate_tokens
from builder.runtime.model import open_model
from builder.runtime.requests import Prompts, read_prompts
from builder.runtime.verify import compare, read_expected
from builder.schema.config import BuildConfig
from builder.schema.fields import field_problems
from builder.schema.groups import GenerateConfig

MOST_RANDOM_TOKENS = 1 << 16
"""Room for the inputs of a comparison with transformers."""


def run_verify(config: BuildConfig) -> Outcome:
    """Compare a checkpoint's outputs with known ones; the answer is whether all are within the tolerance."""
    settings = config.verify
    assert settings is not None, "task=verify brings its keys"
    if settings.against == "transformers":
        from builder.runtime.against_transformers import transformers_outputs

        model = open_model(_room_for(config, MOST_RANDOM_TOKENS))
        expected = transformers_outputs(model)
    else:
        if config.checkpoint is None:
            raise ConfigError([Problem("checkpoint", None, "task=verify needs weights", "give checkpoint=DIR")])
        expected = read_expected(config.checkpoint)
        model = open_model(_room_for(config, expected.input_ids.numel()))
    found = compare(model, expected, settings.tolerance)
    document = found.to_dict()
    return Outcome(document, 0 if found.ok else 1, lambda: show.comparison(document), "verify.json")


def _room_for(config: BuildConfig, tokens: int) -> BuildConfig:
    # The known inputs go through in one step, whatever a step may hold otherwise: the stash has room for them.
    most = max(config.runtime.max_num_batched_tokens, tokens)
    return dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, max_num_batched_tokens=most))


def run_generate(config: BuildConfig) -> Outcome:
    """Generate from the prompts of a configuration. On a terminal a single prompt's text appears as it is made."""
    settings = config.generate
    assert settings is not None, "task=generate brings its keys"
    check_can_draft(config)
    if config.checkpoint is None:
        raise ConfigError([Problem("checkpoint", None, "task=generate needs weights", "give checkpoint=DIR")])
    prompts = read_prompts(config)
    live = settings.stream and config.output == "table" and len(prompts.ids) == 1 and prompts.tokenizer is not None
    stream, model = _Stream(prompts), open_model(config)
    if live:
        stream.begin()
    generated = generate_tokens(model, prompts.ids, settings, config.seed, stream.on_token if live else None)
    document = generated.to_dict()
    texts = [prompts.text(tokens) for tokens in generated.token_ids]
    document = {"token_ids": document.pop("token_ids"), "text": None if None in texts else texts, **document}
    return Outcome(document, 0, lambda: show.generation(document, texts_shown=live), "generate.json")


def run_bench(config: BuildConfig) -> Outcome:
    """Measure; the answer is always yes. bench.what=stash needs no checkpoint, forward does."""
    settings = config.bench
    assert settings is not None, "task=bench brings its keys"
    if settings.what == "stash":
        document = bench_stash.measure(config)
        return Outcome(document, 0, lambda: show.stash_table(document), "bench.json")
    document = bench_forward.measure(open_model(config))
    return Outcome(document, 0, lambda: show.forward_speed(document), "bench.json")


@dataclass
class _Stream:
    # Writes text as far as it is certain: a character of several bytes is held back until its last token is there.
    prompts: Prompts
    tokens: list[int] = field(default_factory=list[int])
    written: int = 0

    def begin(self) -> None:
        self._write(self.prompts.text(self.prompts.ids[0]) or "")

    def on_token(self, request: int, token: int) -> None:
        del request
        self.tokens.append(token)
        text = self.prompts.text(self.tokens) or ""
        if not text.endswith("\ufffd"):
            self._write(text[self.written :])
            self.written = len(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def generate(config: BuildConfig, prompt_ids: list[list[int]], max_new_tokens: int | None = None) -> dict[str, Any]:
    """Generate from token ids in Python: the document of ``task=generate`` without text.

    config: of ``compose(["task=generate", "checkpoint=DIR", …])``. Raises ConfigError and CheckpointError.
    """
    settings = config.generate or GenerateConfig(
        max_new_tokens=128, temperature=0.0, top_p=1.0, ignore_eos=False, stream=False
    )
    if max_new_tokens is not None:
        settings = dataclasses.replace(settings, max_new_tokens=max_new_tokens)
    wrong = list(field_problems(settings, "generate"))
    if wrong:
        raise ConfigError(wrong)
    checked = read_prompts(
        dataclasses.replace(config, prompt=None, prompt_file=None, prompt_ids=prompt_ids, generate=settings)
    )
    return generate_tokens(open_model(config), checked.ids, settings, config.seed).to_dict()
