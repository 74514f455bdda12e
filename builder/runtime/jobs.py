"""What each computing task does with a model, on one rank or on many: its document at the rank that leads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from builder.runtime import bench_forward
from builder.runtime.generate import generate_tokens
from builder.runtime.model import Model
from builder.runtime.requests import Prompts, read_prompts
from builder.runtime.verify import Comparison, compare, read_expected
from builder.schema.config import BuildConfig

Document = dict[str, Any]


def verify(model: Model) -> Document | None:
    """Every output's largest difference, of all replicas."""
    settings = model.config.verify
    assert settings is not None, "task=verify brings its keys"
    if settings.against == "transformers":
        from builder.runtime.against_transformers import transformers_outputs

        expected = transformers_outputs(model)
    else:
        assert model.config.checkpoint is not None, "the model was loaded from it"
        expected = read_expected(model.config.checkpoint)
    found = model.peers.collect(compare(model, expected, settings.tolerance))
    return Comparison.worst(found).to_dict() if found is not None else None


def generate(model: Model) -> Document | None:
    """New tokens of every prompt. On a terminal a single prompt's text appears as it is made."""
    config = model.config
    settings = config.generate
    assert settings is not None, "task=generate brings its keys"
    prompts = read_prompts(config)
    on_token = Stream(prompts).on_token if model.peers.leads and streams(config, prompts) else None
    generated = generate_tokens(model, prompts.ids, settings, config.seed, on_token)
    return generated.to_dict() if model.peers.leads else None


def bench(model: Model) -> Document | None:
    """How fast the forward pass is."""
    return bench_forward.measure(model)


Job = Callable[[Model], Any]

JOBS: dict[str, Job] = {"verify": verify, "generate": generate, "bench": bench}
"""The tasks that can have several ranks."""


def streams(config: BuildConfig, prompts: Prompts) -> bool:
    """Whether text is shown as it is made."""
    wanted = config.generate is not None and config.generate.stream and config.output == "table"
    return wanted and len(prompts.ids) == 1 and prompts.tokenizer is not None


@dataclass
class Stream:
    """Writes text as far as it is certain: a character of several bytes is held back until its last token is there."""

    prompts: Prompts
    tokens: list[int] = field(default_factory=list[int])
    written: int = 0

    def __post_init__(self) -> None:
        self._write(self.prompts.text(self.prompts.ids[0]) or "")

    def on_token(self, request: int, token: int) -> None:
        """One more."""
        del request
        self.tokens.append(token)
        text = self.prompts.text(self.tokens) or ""
        if not text.endswith("\ufffd"):
            self._write(text[self.written :])
            self.written = len(text)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
