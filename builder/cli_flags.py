"""The flags of the command line, anywhere among the overrides. They are Hydra's, read by hand: argparse guesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from builder.errors import ConfigError, Problem
from builder.schema.fields import nearest, one_of

_SWITCHES = {
    "-h": "help",
    "--help": "help",
    "--hydra-help": "hydra_help",
    "--version": "version",
    "--resolve": "resolve",
    "-r": "run",
    "--run": "run",
    "-m": "multirun",
    "--multirun": "multirun",
    "-sc": "shell_completion",
    "--shell-completion": "shell_completion",
}
_WITH_VALUE = {
    "-c": "cfg",
    "--cfg": "cfg",
    "-p": "package",
    "--package": "package",
    "-cp": "config_path",
    "--config-path": "config_path",
    "-cn": "config_name",
    "--config-name": "config_name",
    "-cd": "config_dir",
    "--config-dir": "config_dir",
}
_INFO = ("-i", "--info")
_CHOICES = {
    "cfg": ("job", "hydra", "all"),
    "info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
_COMMANDS = ("help", "hydra_help", "version", "run", "multirun", "shell_completion", "cfg", "info")


@dataclass(slots=True)
class Flags:
    """What the flags say, and the arguments that are none."""

    switches: set[str] = field(default_factory=set[str])
    cfg: str | None = None
    package: str | None = None
    config_path: str | None = None
    config_name: str | None = None
    config_dir: str | None = None
    info: str | None = None
    overrides: list[str] = field(default_factory=list[str])

    @property
    def command(self) -> str:
        """The one thing that is asked for; ``run`` if nothing else is."""
        asked = [name for name in _COMMANDS if name in self.switches or getattr(self, name, None) is not None]
        if len(asked) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in asked)
            raise ConfigError([Problem(names, None, "each asks for something else", "give one of them")])
        return asked[0] if asked else "run"


def read_flags(arguments: Iterable[str]) -> Flags:
    """Sort flags from overrides. Raises ConfigError for a flag that does not exist."""
    flags, rest = Flags(), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            flags.overrides.append(word)
        elif name in _SWITCHES and not equals:
            flags.switches.add(_SWITCHES[name])
        elif name in _WITH_VALUE:
            if not equals and not rest:
                raise ConfigError([Problem(name, None, "needs a value", f"write {name} VALUE")])
            _set(flags, _WITH_VALUE[name], name, value if equals else rest.pop(0))
        elif name in _INFO:
            known = _CHOICES["info"]
            _set(flags, "info", name, value if equals else rest.pop(0) if rest and rest[0] in known else "all")
        else:
            raise ConfigError([_unknown(name, value if equals else None)])
    return flags


def _set(flags: Flags, field_name: str, flag: str, value: str) -> None:
    known = _CHOICES.get(field_name)
    if known and value not in known:
        raise ConfigError([Problem(flag, value, "is not known", one_of(known, value))])
    setattr(flags, field_name, value)


def _unknown(flag: str, value: str | None) -> Problem:
    guess = nearest(flag, [*_SWITCHES, *_WITH_VALUE, *_INFO]) if flag.startswith("--") else None
    works = f"did you mean {guess}?" if guess else "settings are written KEY=VALUE without dashes; see --help"
    return Problem(flag, value, "there is no such flag", works)
