"""The composed tree: every key that the schema knows is in it, and values are set only where a key is."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Union, cast, get_args, get_origin

from builder.composition.hydra_groups import Tree
from builder.composition.typed import hints
from builder.errors import Problem
from builder.schema.config import BuildConfig
from builder.schema.fields import MISSING
from builder.schema.parallel import AXES
from builder.schema.spec import SPEC_CONFIGS, SpecConfig

CHOSEN_BY_GROUP = {"spec.method": "spec", "hardware.vendor": "hardware"}
"""What an option of the group says; setting it alone would leave the rest of another option around it."""


@cache
def node_types() -> dict[str, type]:
    """The dataclass of every node at the root; ``spec`` is decided by its method."""
    found: dict[str, type] = {}
    for name, hint in hints(BuildConfig).items():
        kind = _dataclass_in(hint)
        if kind is not None:
            found[name] = kind
    return found


def node_type(name: str, node: object) -> type | None:
    """The dataclass of one node, with ``spec`` by the method that stands in it."""
    kind = node_types().get(name)
    if kind is SpecConfig and isinstance(node, dict):
        return SPEC_CONFIGS.get(str(cast("Tree", node).get("method")), SpecConfig)
    return kind


@cache
def top_level() -> frozenset[str]:
    """The keys of the root."""
    return frozenset({*hints(BuildConfig), *AXES})


def copy_tree(node: Any) -> Any:
    """A copy that shares nothing that can change. (copy.deepcopy is ten times slower, and sweeps copy often.)"""
    if isinstance(node, dict):
        return {key: copy_tree(value) for key, value in cast("Tree", node).items()}
    if isinstance(node, list):
        return [copy_tree(value) for value in cast("list[Any]", node)]
    return node


def complete(tree: Tree) -> None:
    """Put every key of the schema into the tree that its YAML files leave to the default."""
    for name, node in tree.items():
        kind = node_type(name, node)
        if kind is not None and isinstance(node, dict):
            _fill(cast("Tree", node), kind)


def _fill(node: Tree, kind: type) -> None:
    for field in dataclasses.fields(kind):
        inner = _dataclass_in(hints(kind)[field.name])
        if field.name not in node:
            node[field.name] = _default(field)
        elif inner is not None and isinstance(node[field.name], dict):
            _fill(node[field.name], inner)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def _dataclass_in(hint: Any) -> type | None:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)


def put(tree: Tree, key: str, value: Any, text: str) -> Problem | None:
    """Set one value at a key that the tree has. Returns what is wrong with that, or None."""
    holder, leaf = _holder(tree, key)
    assert holder is not None, key
    if isinstance(holder, list):
        holder[int(leaf)] = value
        return None
    node = holder
    group = CHOSEN_BY_GROUP.get(key)
    if group is not None and value != node[leaf]:
        return Problem(key, text, f"comes with the option of the group, {node[leaf]} here", f"use {group}={text}")
    node[leaf] = value
    return None


def has(tree: Tree, key: str) -> bool:
    """The key is in the tree."""
    return _holder(tree, key)[0] is not None


def flatten(tree: Tree, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``parallel={pp:4}`` as ``parallel.pp=4``, wherever the tree has a node of that name."""
    if isinstance(value, dict) and value and isinstance(get(tree, key), dict):
        for name, inner in cast("Tree", value).items():
            yield from flatten(tree, f"{key}.{name}", inner)
    else:
        yield key, value


def open_nodes(tree: Tree) -> Iterator[str]:
    """Keys of the nodes where a file may add names of its own (``hardware.devices``)."""
    for name in tree:
        kind = node_types().get(name)
        if kind is not None:
            yield from (f"{name}.{key}" for key, hint in hints(kind).items() if get_origin(hint) is dict)


def merged(tree: Tree, key: str, added: Tree) -> Tree:
    """The node of ``key`` with values by dotted key put in, new names among them."""
    node = cast("Tree", copy_tree(get(tree, key)))
    for dotted_key, value in added.items():
        *parents, leaf = dotted_key.removeprefix(f"{key}.").split(".")
        holder = node
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[leaf] = value
    return node


def get(tree: Tree, key: str) -> Any:
    """The value of a dotted key, None where there is no such key."""
    holder, leaf = _holder(tree, key)
    if holder is None:
        return None
    return holder[int(leaf)] if isinstance(holder, list) else holder[leaf]


def _holder(tree: Tree, key: str) -> tuple[Tree | list[Any] | None, str]:
    *parents, leaf = key.split(".")
    node: Any = tree
    for part in parents:
        if not isinstance(node, dict) or part not in node:
            return None, leaf
        node = cast("Tree", node)[part]
    if isinstance(node, dict) and leaf in node:
        return cast("Tree", node), leaf
    if isinstance(node, list) and leaf.isdigit() and int(leaf) < len(cast("list[Any]", node)):
        return cast("list[Any]", node), leaf
    return None, leaf


def dotted(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Every key of the tree that holds a value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        yield key
        if isinstance(value, dict):
            yield from dotted(cast("Tree", value), f"{key}.")


def texts(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key whose value is text with an interpolation in it."""
    if isinstance(tree, dict):
        for name, value in cast("Tree", tree).items():
            yield from texts(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, list):
        for index, value in enumerate(cast("list[Any]", tree)):
            yield from texts(value, f"{prefix}.{index}")
    elif isinstance(tree, str) and "${" in tree:
        yield prefix, tree
