"""Prompts of a run: from the configuration to token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from builder.errors import ConfigError, Problem
from builder.schema.config import BuildConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SOURCES = ("prompt", "prompt_ids", "prompt_file")


@dataclass(frozen=True)
class Prompts:
    """Token ids of each prompt; tokenizer: None where only ids were given and the checkpoint has none."""

    ids: list[list[int]]
    tokenizer: Tokenizer | None

    def text(self, tokens: list[int]) -> str | None:
        """Tokens as text."""
        return self.tokenizer.decode(tokens) if self.tokenizer is not None else None


def read_prompts(config: BuildConfig) -> Prompts:
    """The prompts of ``prompt=``, ``prompt_ids=`` or ``prompt_file=`` (one a line). Raises ConfigError."""
    given = [name for name in _SOURCES if getattr(config, name) is not None]
    if len(given) != 1:
        found = "none is given" if not given else f"{' and '.join(given)} are given together"
        raise ConfigError([Problem("prompt", None, found, "give one of prompt=, prompt_ids= and prompt_file=")])
    tokenizer = _tokenizer(config)
    if given[0] == "prompt_ids":
        ids = _prompt_ids(config.prompt_ids)
    else:
        texts = [cast("str", config.prompt)] if given[0] == "prompt" else _lines(cast("str", config.prompt_file))
        ids = [_encode(tokenizer, text, given[0]) for text in texts]
    _check(ids, given[0], config)
    return Prompts(ids, tokenizer)


def _tokenizer(config: BuildConfig) -> Tokenizer | None:
    assert config.checkpoint is not None
    path = Path(config.checkpoint) / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        if config.prompt_ids is not None:
            return None
        raise ConfigError([Problem("checkpoint", str(path), f"is no tokenizer: {error}", "use prompt_ids=")]) from None


def _encode(tokenizer: Tokenizer | None, text: str, key: str) -> list[int]:
    if tokenizer is None:
        reason = "the checkpoint has no tokenizer.json to read it with"
        raise ConfigError([Problem(key, None, reason, "give prompt_ids=[…]")])
    return tokenizer.encode(text).ids


def _lines(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [Problem("prompt_file", path, f"cannot be read: {error}", "give a UTF-8 text file")]
        ) from None
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]


def _prompt_ids(given: Any) -> list[list[int]]:
    prompts = cast("list[Any]", given if isinstance(given, list) else [given])
    if prompts and not any(isinstance(prompt, list) for prompt in prompts):
        prompts = [prompts]
    legal = prompts and all(
        isinstance(prompt, list) and all(type(token) is int for token in cast("list[Any]", prompt))
        for prompt in prompts
    )
    if not legal:
        raise ConfigError([Problem("prompt_ids", f"{given}", "is no list of token ids", "give [1,2,3] or [[1,2],[3]]")])
    return cast("list[list[int]]", prompts)


def _check(prompts: list[list[int]], key: str, config: BuildConfig) -> None:
    problems: list[Problem] = []
    vocabulary, most = config.model.vocab_size, config.runtime.max_model_len
    wanted = config.generate.max_new_tokens if config.generate is not None else 0
    if not prompts:
        problems.append(Problem(key, None, "holds no prompt", "give at least one"))
    for number, ids in enumerate(prompts):
        if not ids:
            problems.append(Problem(f"{key}[{number}]", None, "is empty", "give at least one token"))
        elif not all(0 <= token < vocabulary for token in ids):
            bad = next(token for token in ids if not 0 <= token < vocabulary)
            problems.append(
                Problem(
                    f"{key}[{number}]", bad, f"the vocabulary has {vocabulary} tokens", f"use 0 to {vocabulary - 1}"
                )
            )
        elif len(ids) + wanted > most:
            reason = f"{len(ids)} tokens and {wanted} new ones are more than runtime.max_model_len={most}"
            room = most - len(ids)
            works = f"use generate.max_new_tokens of {room} or less" if room > 0 else "give a shorter prompt"
            problems.append(Problem(f"{key}[{number}]", None, reason, works))
    if problems:
        raise ConfigError(problems)
