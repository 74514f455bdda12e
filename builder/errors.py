"""The errors a user can meet. Everything else that escapes is a bug of this project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    key: as the user writes it (``pp``, ``model.hidden_size``); value: what was found there;
    reason: what it was checked against, with the numbers; works: what would work instead.
    """

    key: str
    value: object
    reason: str
    works: str = ""

    def __str__(self) -> str:
        head = self.key if self.value is None else f"{self.key}={self.value}"
        tail = f"; {self.works}" if self.works else ""
        return f"{head}: {self.reason}{tail}"


class BuilderError(Exception):
    """Base of all errors that are the input's fault. The command line exits with 2 on it."""


class ConfigError(BuilderError, ValueError):
    """A configuration cannot be used. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class CheckpointError(BuilderError):
    """A checkpoint folder cannot be used: names the file, the tensor, expected against found."""


class RankError(BuilderError):
    """Ranks could not start, or one of them ended early: says which, and why."""
