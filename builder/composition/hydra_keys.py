"""Hydra's own keys and groups: only those that Hydra has, whatever stands before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from omegaconf import OmegaConf

from builder.composition.hydra_groups import Groups, HydraGroups
from builder.composition.overrides import HydraItem
from builder.composition.tree import dotted, get
from builder.errors import Problem
from builder.schema.fields import nearest, one_of


def problems(item: HydraItem, groups: Groups, hydra: HydraGroups) -> Iterator[Problem]:
    """What is wrong with ``hydra.x=…`` or ``hydra/x=…``."""
    text = item.text.partition("=")[2]
    if "/" in item.key:
        known = hydra.options(item.key)
        if not known:
            yield Problem(item.key, text, "Hydra has no such group", "see --hydra-help")
        elif item.value not in known:
            yield Problem(item.key, text, "is not known", one_of(known, text))
        return
    node = {"hydra": cast("dict[str, Any]", OmegaConf.to_container(groups.hydra))}
    known = [key for key in dotted(node) if key != "hydra"]
    if isinstance(get(node, item.key), dict):
        yield Problem(item.key, text, "is a group of keys", f"set one of them, {item.key}.KEY=VALUE")
    elif item.key not in known:
        guess = nearest(item.key, known)
        yield Problem(item.key, text, "Hydra has no such key", f"did you mean {guess}?" if guess else "see --cfg hydra")
