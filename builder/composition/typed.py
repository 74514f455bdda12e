"""Plain dicts become the schema's dataclasses: every key known, every value of its type, or a problem that says so."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from builder.errors import Problem
from builder.schema.fields import MISSING, legal_values, nearest, value_problems
from builder.schema.groups import AUTO

Report = Callable[[Problem], None]
Read = Callable[[Any, str, Report], Any]

WRONG: Any = object()
"""Stands where a value could not be read; the problem was reported."""


@cache
def hints(kind: type) -> dict[str, Any]:
    """The resolved types of a dataclass's fields, by name."""
    return get_type_hints(kind)


def read_node(kind: type, data: object, key: str, report: Report, owner: str = "") -> Any:
    """A dataclass of ``kind`` from a dict, or WRONG after reporting why. owner: who wrote the dict."""
    if not isinstance(data, dict):
        report(Problem(key, show(data), "must be a group of keys", f"use one of {', '.join(hints(kind))}"))
        return WRONG
    node = cast("dict[str, Any]", data)
    strange = [name for name in node if name not in hints(kind)]
    for name in strange:
        report(unknown_key(f"{key}.{name}", show(node[name]), f"{owner or key} has no such key", hints(kind)))
    values = {name: read(node[name], f"{key}.{name}", report) for name, read in _readers(kind) if name in node}
    if strange or any(value is WRONG for value in values.values()):
        _report_ranges(kind, values, key, report)
        return WRONG
    missing = {name: MISSING for name in _required(kind) if name not in values}
    return kind(**values, **missing)


def _report_ranges(kind: type, values: Mapping[str, Any], key: str, report: Report) -> None:
    """Where one value of a node is WRONG, nobody else looks at its neighbours."""
    for field in dataclasses.fields(kind):
        value = values.get(field.name)
        if isinstance(value, int | float | str) and value not in (MISSING, AUTO):
            for problem in value_problems(value, f"{key}.{field.name}", field.metadata):
                report(problem)


def unknown_key(key: str, value: object, reason: str, known: Mapping[str, Any]) -> Problem:
    """A key that does not exist, with the nearest one of its siblings."""
    parent, _, leaf = key.rpartition(".")
    guess = nearest(leaf, known)
    works = f"did you mean {parent}.{guess}?" if guess else f"use one of {', '.join(known)}"
    return Problem(key, value, reason, works)


def show(value: object) -> str:
    """A value as YAML and the command line spell it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'


def field_reader(kind: type, name: str) -> Read:
    """What reads one field of a dataclass."""
    return dict(_readers(kind))[name]


@cache
def _required(kind: type) -> tuple[str, ...]:
    fields = dataclasses.fields(kind)
    unset = dataclasses.MISSING
    return tuple(field.name for field in fields if field.default is unset and field.default_factory is unset)


@cache
def _readers(kind: type) -> tuple[tuple[str, Read], ...]:
    rules = {field.name: dict(field.metadata) for field in dataclasses.fields(kind)}
    return tuple((name, _reader(hint, rules[name])) for name, hint in hints(kind).items() if name in rules)


def _reader(hint: Any, rules: Mapping[str, Any]) -> Read:
    if hint is Any:
        return lambda value, key, report: value
    if get_origin(hint) in (Union, types.UnionType):
        inner = _reader(next(part for part in get_args(hint) if part is not type(None)), rules)
        return lambda value, key, report: None if value is None else inner(value, key, report)
    if get_origin(hint) is list:
        return _list_reader(_reader(get_args(hint)[0], {}))
    if get_origin(hint) is dict:
        return _dict_reader(_reader(get_args(hint)[1], {}))
    if dataclasses.is_dataclass(hint):
        return lambda value, key, report: read_node(cast("type", hint), value, key, report)
    return _scalar_reader(hint, legal_values(rules))


def _scalar_reader(kind: type, works: str) -> Read:
    convert, words = _SCALARS[kind]

    def read(value: Any, key: str, report: Report) -> Any:
        if isinstance(value, str) and value == MISSING:
            return value
        if value is None:
            report(Problem(key, "null", "must have a value", works))
            return WRONG
        found = convert(value)
        if found is WRONG:
            report(Problem(key, show(value), words, works))
        return found

    return read


def _list_reader(inner: Read) -> Read:
    def read(value: Any, key: str, report: Report) -> Any:
        if isinstance(value, str) and value == MISSING:
            return value
        if not isinstance(value, list):
            report(Problem(key, show(value), "is no list", f"write {key}=[…,…]"))
            return WRONG
        items = [inner(item, f"{key}[{i}]", report) for i, item in enumerate(cast("list[Any]", value))]
        return WRONG if any(item is WRONG for item in items) else items

    return read


def _dict_reader(inner: Read) -> Read:
    def read(value: Any, key: str, report: Report) -> Any:
        if not isinstance(value, dict):
            report(Problem(key, show(value), "must be a group of keys"))
            return WRONG
        node = cast("dict[str, Any]", value)
        items = {str(name): inner(item, f"{key}.{name}", report) for name, item in node.items()}
        return WRONG if any(item is WRONG for item in items.values()) else items

    return read


def _to_int(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return WRONG
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return WRONG
    return number if isinstance(value, str) or number == value else WRONG


def _to_float(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return WRONG
    try:
        return float(value)
    except (ValueError, OverflowError):
        return WRONG


def _to_bool(value: Any) -> Any:
    words = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
    return value if isinstance(value, bool) else words.get(str(value).lower(), WRONG)


def _to_text(value: Any) -> Any:
    return (
        show(value)
        if isinstance(value, bool)
        else WRONG
        if isinstance(value, list | dict)
        else str(cast("object", value))
    )


_SCALARS: dict[type, tuple[Callable[[Any], Any], str]] = {
    int: (_to_int, "is no integer"),
    float: (_to_float, "is no number"),
    bool: (_to_bool, "is neither true nor false"),
    str: (_to_text, "is no text"),
}
