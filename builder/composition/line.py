"""The arguments of one command line, read and sorted by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from builder.composition import unknown
from builder.composition.hydra_groups import HydraGroups
from builder.composition.overrides import Choice, HydraItem, Item, Value, read_item
from builder.composition.tree import top_level
from builder.errors import ConfigError, Problem
from builder.schema.fields import one_of

GROUPS = ("model", "hardware", "kernels", "parallel", "spec", "cache", "runtime", "task")
DRAFT = "model@draft"


@dataclass(slots=True)
class Line:
    """Choices, values and Hydra's own items of a command line, with what is wrong with them."""

    choices: dict[str, str] = field(default_factory=dict[str, str])
    values: list[Value] = field(default_factory=list[Value])
    hydra: list[HydraItem] = field(default_factory=list[HydraItem])
    problems: list[Problem] = field(default_factory=list[Problem])
    unsure: set[str] = field(default_factory=set[str])

    def add(self, item: Item) -> None:
        """Sort one item in; of two choices of one group the last wins, as in Hydra."""
        if isinstance(item, Choice):
            self.choices[item.key] = item.option
        elif isinstance(item, Value):
            self.values.append(item)
        else:
            self.hydra.append(item)

    def refuse(self, problems: Iterable[Problem], node: str) -> None:
        """Note problems that leave a node of the tree unknown."""
        self.problems += problems
        self.unsure.add(node)

    def literal(self, key: str) -> str | None:
        """The last value of a key of free text."""
        return next((str(value.value) for value in reversed(self.values) if value.key == key), None)


class LineReader:
    """Reads arguments, each text once (the rows of a sweep share most of theirs)."""

    def __init__(self, groups: HydraGroups) -> None:
        self.groups = groups
        self._items: dict[str, Item | ConfigError] = {}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.groups.names())

    def read(self, arguments: Iterable[str]) -> Line:
        """Read a command line; what is wrong with it is in the result."""
        line = Line()
        for text in arguments:
            item = self._item(text)
            if isinstance(item, ConfigError):
                line.refuse(item.problems, item.problems[0].key.partition("@")[0].partition(".")[0])
            else:
                line.add(item)
        for key, option in list(line.choices.items()):
            problem = self._choice_problem(Choice(key, option))
            if problem is not None:
                line.refuse([problem], "draft" if key == DRAFT else key.partition("@")[0])
                del line.choices[key]
        return line

    def _item(self, text: str) -> Item | ConfigError:
        if text not in self._items:
            try:
                self._items[text] = read_item(text, lambda key: key in self._names or "/" in key)
            except ConfigError as error:
                self._items[text] = error
        return self._items[text]

    def _choice_problem(self, choice: Choice) -> Problem | None:
        known = self.groups.options(choice.group)
        if not known:
            return unknown.explain(choice.key, choice.option, dict.fromkeys(top_level()), {}, dict)
        if choice.key not in (choice.group, DRAFT):
            return Problem(choice.key, choice.option, "there is no such key", f"use {choice.group}= or {DRAFT}=")
        if choice.option not in known:
            return Problem(choice.key, choice.option, "is not known", one_of(known, choice.option))
        return None
