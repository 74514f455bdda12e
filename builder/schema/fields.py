"""What a single setting may hold, written beside the setting and checked in one place."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from builder.errors import Problem

MISSING: Any = "???"
"""The mark of a value that YAML must give (the same string that OmegaConf uses)."""

HUGE = 1 << 40
"""No size in a configuration is near this; a larger one is a slip of the keyboard."""


def setting(
    default: object = MISSING,
    *,
    choices: tuple[str, ...] | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field and what it takes: one of ``choices``, or a number, ``least`` (or ``above``) to ``most``."""
    rules = {"choices": choices, "least": least, "above": above, "most": most}
    metadata = {name: rule for name, rule in rules.items() if rule is not None}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: cast("Any", default).copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word of ``words`` that was probably meant, if one is close."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def one_of(choices: Iterable[str], word: str = "") -> str:
    """``use a, b or c``, with the nearest spelling first when there is one."""
    names = list(choices)
    guess = nearest(word, names) if word else None
    listed = f"use one of {', '.join(names)}" if len(names) > 1 else f"use {names[0]}"
    return f"did you mean {guess}? {listed}" if guess else listed


def legal_values(rules: Mapping[str, Any]) -> str:
    """What a setting with these rules may hold, as advice; empty where anything of its type may."""
    if "choices" in rules:
        return one_of(rules["choices"])
    bounds = _bounds(rules)
    return f"use {bounds}" if bounds else ""


def field_problems(node: object, prefix: str) -> Iterator[Problem]:
    """Check every setting of a dataclass, and of the dataclasses in it, against its own rules."""
    assert dataclasses.is_dataclass(node)
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        key = f"{prefix}.{field.name}" if prefix else field.name
        if value is None:
            continue
        if value == MISSING and isinstance(value, str):
            yield Problem(key, None, "has no value", f"give {key}=…")
        elif dataclasses.is_dataclass(value):
            yield from field_problems(value, key)
        else:
            yield from value_problems(value, key, field.metadata)


def value_problems(value: object, key: str, rules: Mapping[str, Any]) -> Iterator[Problem]:
    """Check one value against the rules of its setting."""
    if "choices" in rules and value not in rules["choices"]:
        yield Problem(key, value, "is not known", one_of(rules["choices"], str(value)))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    bounds = _bounds(rules, value)
    if not bounds:
        return
    legal = (
        math.isfinite(value)
        and value >= rules.get("least", -math.inf)
        and value > rules.get("above", -math.inf)
        and value <= rules.get("most", HUGE)
    )
    if not legal:
        yield Problem(key, value, "is out of range", f"use {bounds}")


def _bounds(rules: Mapping[str, Any], value: float = 0) -> str:
    words: list[str] = []
    if "least" in rules:
        words.append(f"at least {rules['least']:,}")
    if "above" in rules:
        words.append(f"more than {rules['above']:,}")
    if "most" in rules or (words and value > HUGE):
        words.append(f"at most {rules.get('most', HUGE):,}")
    return " and ".join(words)
