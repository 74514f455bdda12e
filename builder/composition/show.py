"""A composed configuration as YAML, for ``--cfg job``."""

from __future__ import annotations

from typing import Any

import yaml

from builder.composition.result import Composition
from builder.composition.tree import dotted, get, has
from builder.errors import ConfigError, Problem
from builder.schema.fields import nearest


def node_text(composition: Composition, package: str | None, *, resolve: bool) -> str:
    """The YAML of the whole configuration or of one node. Raises ConfigError for a node that is not there."""
    tree = composition.resolved() if resolve else composition.tree
    if package in (None, "_global_"):
        return _yaml(tree)
    if not has(tree, package):
        guess = nearest(package, dotted(tree))
        works = f"did you mean {guess}?" if guess else f"use one of {', '.join(tree)}"
        raise ConfigError([Problem("--package", package, "there is no such node", works)])
    node = get(tree, package)
    return f"# @package {package}\n{_yaml(node)}" if isinstance(node, dict | list) else f"{node}\n"


def _yaml(node: Any) -> str:
    return yaml.safe_dump(node, sort_keys=False, allow_unicode=True, width=120)
