"""JSON from files nobody vouches for: read as data, strictly, with a limit, and refused in plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from builder.errors import ConfigError, Problem
from builder.schema.fields import MISSING, one_of

MOST_BYTES = 64 << 20
"""No config.json or weight index comes near this."""

_MOST_DIGITS = 40


def read_json_object(path: Path, key: str) -> dict[str, object]:
    """The object in a file. Anything but one well-formed object is a ConfigError that names ``key`` and the path."""
    text = _read_text(path, key)
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        _refuse(key, path, "is not JSON that can be read: nested too deep")
    except ValueError as error:
        _refuse(key, path, f"is not JSON that can be read: {error}")
    if not isinstance(value, dict):
        _refuse(key, path, "holds no JSON object", 'it must look like {"hidden_size": …}')
    return cast("dict[str, object]", value)


def _read_text(path: Path, key: str) -> str:
    try:
        if not path.is_file():
            _refuse(key, path, "is no regular file" if path.exists() else "there is no such file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        _refuse(key, path, f"cannot be read: {error.strerror}")
    if len(data) > MOST_BYTES:
        _refuse(key, path, f"is larger than {MOST_BYTES:,} bytes", "give a config.json, not the weights")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(key, path, f"is not UTF-8 text, from byte {error.start} on")


def _refuse(key: str, path: Path, reason: str, works: str = "") -> NoReturn:
    raise ConfigError([Problem(key, path, reason, works)]) from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {json.dumps(name)[:80]} is there twice")
        found[name] = value
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:_MOST_DIGITS]} is too large a number")
    return value


def _int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{digits[:_MOST_DIGITS]}… is too large a number")
    return int(digits)


def shown(value: object) -> str:
    """A value as the file spells it, cut to what fits into a message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "..."
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True, kw_only=True)
class JsonNode:
    """One object of a file, read member by member. What is wrong goes into ``problems``; its value is then ``MISSING``.

    A null member counts as absent. ``path`` is where the object stands in the file, ``rope_parameters.main.`` say.
    """

    file: str
    data: dict[str, object]
    problems: list[Problem]
    path: str = ""

    def refuse(self, name: str, value: object, reason: str, works: str = "") -> Any:
        """Note a problem with a member; ``value`` None keeps it out of the message."""
        written = None if value is None else shown(value)
        self.problems.append(Problem(f"{self.file}: {self.path}{name}", written, reason, works))
        return MISSING

    def get(self, name: str) -> object:
        """A member as it stands, None where it is absent."""
        return self.data.get(name)

    def whole(self, name: str, default: object = MISSING) -> Any:
        """A whole number."""
        value = self.get(name)
        if value is None:
            return self._absent(name, default, "give a whole number")
        if type(value) is not int:
            return self.refuse(name, value, "must be a whole number")
        return value

    def real(self, name: str, default: object = MISSING) -> Any:
        """A number, with or without a fraction."""
        value = self.get(name)
        if value is None:
            return self._absent(name, default, "give a number")
        if type(value) not in (int, float):
            return self.refuse(name, value, "must be a number")
        return float(cast("float", value))

    def word(self, name: str, choices: Iterable[str], default: object = MISSING) -> Any:
        """One of some words."""
        value = self.get(name)
        if value is None:
            return self._absent(name, default, one_of(choices))
        if not isinstance(value, str) or value not in choices:
            return self.refuse(name, value, "is not known", one_of(choices, str(value)[:60]))
        return value

    def items(self, name: str) -> list[object] | None:
        """A list; None where it is absent or, with a problem noted, where there is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, value, "must be a list")
        return cast("list[object]", value) if isinstance(value, list) else None

    def child(self, name: str) -> JsonNode | None:
        """An object within; None where it is absent or, with a problem noted, where there is something else."""
        value = self.get(name)
        if isinstance(value, dict):
            data = cast("dict[str, object]", value)
            return JsonNode(file=self.file, data=data, problems=self.problems, path=f"{self.path}{name}.")
        if value is not None:
            self.refuse(name, value, 'must be an object, {"…": …}')
        return None

    def _absent(self, name: str, default: object, works: str) -> object:
        return self.refuse(name, None, "is missing", works) if default is MISSING else default
