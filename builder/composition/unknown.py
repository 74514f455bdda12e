"""What to say about a key that is not there: who has it, or which was probably meant. Never to add it with ``+``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from builder.composition.hydra_groups import Tree
from builder.composition.tree import dotted, node_type, node_types, top_level
from builder.composition.typed import hints, unknown_key
from builder.errors import Problem
from builder.schema.fields import nearest
from builder.schema.spec import SPEC_CONFIGS

HELP = "see --help for all keys"


def explain(key: str, text: str, tree: Tree, choices: Mapping[str, str], nodes_of_tasks: Callable[[], Tree]) -> Problem:
    """The problem of a key that the tree does not have."""
    node, _, leaf = key.partition(".")
    if leaf and node not in tree:
        if node == "draft":
            return _no_draft(key, text, choices)
        owners = [task for task, nodes in nodes_of_tasks().items() if node in nodes]
        if owners:
            kind = node_types()[node]
            if leaf not in hints(kind):
                return unknown_key(key, text, "there is no such key", hints(kind))
            return Problem(key, text, f"{choice('task', choices)} has no such key", f"{_have('task', owners)} it")
    if node == "spec" and leaf:
        owners = [method for method, kind in SPEC_CONFIGS.items() if leaf in hints(kind)]
        if owners:
            return Problem(key, text, f"{choice('spec', choices)} has no such key", f"{_have('spec', owners)} it")
    kind = node_type(node, tree.get(node))
    if kind is not None and leaf and "." not in leaf and isinstance(tree.get(node), dict):
        known = dict.fromkeys(hints(kind))
        return unknown_key(key, text, f"{choice(node, choices)} has no such key", known)
    return _nowhere(key, text, tree)


def choice(group: str, choices: Mapping[str, str]) -> str:
    """``spec=none``, as the user would write the choice that is in force."""
    return f"{group}={choices[group]}" if group in choices else group


def _no_draft(key: str, text: str, choices: Mapping[str, str]) -> Problem:
    return Problem(key, text, f"{choice('spec', choices)} has no draft", "only spec=draft_model has one")


def _have(group: str, options: Iterable[str]) -> str:
    names = [f"{group}={option}" for option in options]
    return f"only {names[0]} has" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} have"


def _nowhere(key: str, text: str, tree: Tree) -> Problem:
    known = [*dotted(tree), *top_level()]
    leaf = key.rpartition(".")[2]
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    guess = nearest(key, known) or (same_leaf[0] if same_leaf else None)
    return Problem(key, text, "there is no such key", f"did you mean {guess}?" if guess else HELP)
