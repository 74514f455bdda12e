"""One argument of the command line, read: a choice of a group, a value, a key of Hydra's own, or free text.

The grammar is Hydra's own. Free text is taken out before that grammar can see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from antlr4.error.Errors import RecognitionException
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from builder.errors import ConfigError, Problem

LITERAL_KEYS = frozenset(
    {
        "prompt",
        "prompt_file",
        "command",
        "log",
        "checkpoint",
        "spec.checkpoint",
        "model.config",
        "draft.config",
        "report.html",
        "out",
    }
)
"""Everything after their first ``=`` is the value, as typed: no quotes, no interpolation, no sweep."""

MAY_BE_EMPTY = frozenset({"prompt"})


@dataclass(frozen=True, slots=True)
class Choice:
    """``hardware=amd``: an option of a group; ``key`` may carry a package (``model@draft``)."""

    key: str
    option: str

    @property
    def group(self) -> str:
        return self.key.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Value:
    """``pp=4``: a value for a key, and how it was typed."""

    key: str
    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class HydraItem:
    """``hydra.verbose=true`` or ``hydra/launcher=basic``: handed to Hydra after its key was found to exist."""

    key: str
    text: str
    value: Any


Item = Choice | Value | HydraItem


def take_search_path(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The folders of ``hydra.searchpath=[…]``, and the arguments without it. Raises ConfigError."""
    key, rest = "hydra.searchpath", list[str]()
    folders: list[str] = []
    for text in arguments:
        if is_literal(text) or split_key(text)[1] != key:
            rest.append(text)
            continue
        value: Any = parse(text).value()
        for entry in cast("list[Any]", value) if isinstance(value, list) else [value]:
            folder = str(entry).removeprefix("file://")
            if not Path(folder).is_dir():
                raise ConfigError([Problem(key, folder, "there is no such folder", "give existing folders")])
            folders.append(folder)
    return folders, rest


def split_key(text: str) -> tuple[str, str, str]:
    """The marks before a key (``+``, ``++``, ``~``), the key, and everything after the first ``=``."""
    head, _, value = text.partition("=")
    key = head.lstrip("+~")
    return head[: len(head) - len(key)], key, value


def is_literal(text: str) -> bool:
    """The argument is free text: the grammar must not see it."""
    marks, key, _ = split_key(text)
    return "=" in text and "~" not in marks and key in LITERAL_KEYS


def read_item(text: str, is_group: Callable[[str], bool]) -> Item:
    """Read one argument. Raises ConfigError in plain words."""
    _, key, raw = split_key(text)
    if is_literal(text):
        return _literal(key, raw)
    override = parse(text)
    if override.is_sweep_override():
        raise ConfigError([_sweep_problem(override, raw)])
    key = override.get_key_element().lstrip("+")
    value: Any = override.value()
    if override.is_hydra_override():
        return HydraItem(key, text.lstrip("+"), value)
    if (override.package is not None or is_group(override.key_or_group)) and not isinstance(value, dict):
        return _choice(key, value, raw)
    return Value(key, value, raw)


def parse(text: str) -> Override:
    """Hydra's grammar on one argument. Raises ConfigError where it does not match."""
    marks, key, raw = split_key(text)
    if "~" in marks:
        works = "use spec=none" if key == "spec" else "leave the key out, or choose another value"
        raise ConfigError([Problem(text, None, "nothing can be taken away", works)])
    if "=" not in text:
        raise ConfigError([Problem(text, None, "is no KEY=VALUE", f"write {key}=VALUE; see --help for the keys")])
    try:
        return _PARSER.parse_rule(text, "override")
    except (HydraException, RecognitionException) as error:
        reason = f"cannot be read ({str(error).splitlines()[0].rstrip('.')})" if str(error) else "cannot be read"
        works = f"put the value in quotes of its own: '{key}=\"…\"'"
        raise ConfigError([Problem(key, raw, reason, works)]) from None


def _literal(key: str, raw: str) -> Value:
    if not raw and key not in MAY_BE_EMPTY:
        raise ConfigError([Problem(f"{key}=", None, "is empty", "give a value, or leave the key out")])
    return Value(key, raw, raw)


def _choice(key: str, value: object, raw: str) -> Choice:
    if isinstance(value, list):
        names = raw.strip("[]").replace(" ", "")
        works = f"choose one, or sweep over them: -m {key}={names}"
        raise ConfigError([Problem(key, raw, "a group takes one option", works)])
    if value is None or value == "":
        raise ConfigError([Problem(key, raw or '""', "a group takes one option", "name it, or leave the group out")])
    return Choice(key, raw if not isinstance(value, str) else value)


def _sweep_problem(override: Override, raw: str) -> Problem:
    key = override.get_key_element().lstrip("+")
    works = f"add -m: -m {key}={raw}"
    if override.value_type is ValueType.SIMPLE_CHOICE_SWEEP:
        works += f"; a list is written {key}=[{raw}]"
    return Problem(key, raw, "several values make a sweep, and this is a single run", works)


_PARSER = OverridesParser.create()
