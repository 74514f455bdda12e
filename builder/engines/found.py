"""Overrides under construction, while a command is read."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Found:
    """What a command says so far, in builder's words. defaults: overrides that say what the engine takes by itself.

    not_carried: flags that change bytes and that no override says.
    """

    overrides: list[str] = field(default_factory=list[str])
    defaults: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    not_carried: list[str] = field(default_factory=list[str])

    def add(self, key: str, value: object) -> None:
        """One value that the command gives."""
        self.overrides.append(f"{key}={value}")

    def choose(self, group: str, option: str) -> None:
        """An option of a group."""
        self.overrides.append(f"{group}={option}")

    def assume(self, key: str, value: object) -> None:
        """A value that the command leaves to the engine, and that the engine is known to choose."""
        self.add(key, value)
        self.defaults.append(f"{key}={value}")
