"""One command line, composed: its tree, and the typed configuration that comes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from builder.composition import resolved
from builder.composition.hydra_groups import Tree
from builder.composition.models import ModelSource
from builder.composition.typed import WRONG
from builder.errors import ConfigError, Problem
from builder.schema.config import BuildConfig
from builder.schema.model import ModelConfig
from builder.schema.parallel import AXES

LONGEST_SHOWN = 200
"""Characters of a value that a message repeats."""


@dataclass(slots=True)
class Composition:
    """A composed command line.

    tree: all keys with their values, interpolations still text; choices: the option of every group; named: the groups
    that the user chose; typed: the keys that the user gave; problems: what is wrong with the command line itself;
    unsure: nodes that a problem leaves unknown, so that nothing can be said of them.
    """

    tree: Tree
    choices: dict[str, str]
    named: frozenset[str]
    typed: frozenset[str]
    problems: list[Problem]
    unsure: frozenset[str] = frozenset()
    sources: tuple[ModelSource, ...] = ()

    def refuse(self) -> None:
        """Raise ConfigError if the command line itself is wrong."""
        if self.problems:
            raise ConfigError(self.problems)

    def resolved(self) -> Tree:
        """The tree without interpolations. Raises ConfigError with the command line's problems too."""
        found: list[Problem] = []
        tree = resolved.resolve(self.tree, found.append)
        if found:
            raise self._error([*self.problems, *found])
        return tree

    def config(self) -> BuildConfig:
        """The typed configuration, checked. Raises one ConfigError with everything that is wrong."""
        found = list(self.problems)
        parts = resolved.read_parts(self.resolved(), self.choices, found.append)
        if self.unsure or any(part is WRONG for part in parts.values()):
            found += resolved.partial_problems(parts, self.unsure)
            raise self._error(found)
        config = BuildConfig(**parts)
        resolved.resolve_autos(config)
        found += self._compared(config)
        found += resolved.check(config)
        if found:
            raise self._error(found)
        return config

    def _compared(self, config: BuildConfig) -> list[Problem]:
        found: list[Problem] = []
        for source in self.sources:
            model = cast("ModelConfig | None", getattr(config, source.node))
            try:
                if model is not None:
                    source.compare(model)
            except ConfigError as error:
                found += error.problems
        return found

    def _error(self, found: Iterable[Problem]) -> ConfigError:
        typed = (self._as_typed(problem) for problem in found)
        return ConfigError({str(problem): problem for problem in typed}.values())

    def _as_typed(self, problem: Problem) -> Problem:
        """The key as the user typed it: ``pp`` and ``parallel.pp`` are one."""
        key, value = problem.key, problem.value
        axis = key.removeprefix("parallel.")
        if axis in AXES:
            long = f"parallel.{axis}"
            key = long if long in self.typed and axis not in self.typed else axis
        if len(str(value)) > LONGEST_SHOWN:
            value = f"{str(value)[:LONGEST_SHOWN]}…"
        return Problem(key, value, problem.reason, problem.works)
