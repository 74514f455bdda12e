"""Compositions put together from others, so that a sweep over groups asks Hydra once per option, not once per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.composition.hydra_groups import Groups


def combined(base: Groups, singles: Mapping[str, Groups]) -> Groups:
    """``base`` with several choices at once. ``singles``: for each group the composition with that choice alone.

    A choice may bring other nodes along (``hardware=cpu`` a plain cache); a group that is named itself wins over that.
    """
    tree, choices = dict(base.tree), dict(base.choices)
    for single in singles.values():
        _bring(tree, base.tree, single.tree, singles)
        _bring(choices, base.choices, single.choices, singles)
    for group, single in singles.items():
        tree[group] = single.tree[group]
        choices[group] = single.choices[group]
    return Groups(tree, choices, base.hydra)


def _bring(
    target: dict[str, Any], base: Mapping[str, Any], single: Mapping[str, Any], named: Mapping[str, Any]
) -> None:
    for name in base.keys() - single.keys():
        target.pop(name, None)
    target |= {name: value for name, value in single.items() if name not in named and value != base.get(name)}
