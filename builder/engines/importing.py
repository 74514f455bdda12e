"""``task=import``: the serve command of another engine, read into a configuration."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from builder.engines import from_bytes, from_sglang, from_vllm
from builder.engines.command import ENGINES, REPOSITORIES
from builder.engines.found import Found
from builder.engines.reading import Read, read_command
from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.schema.config import BuildConfig

_READERS = {"vllm": from_vllm.read, "sglang": from_sglang.read}
_HARDWARE = (("ROCM", "amd"), ("AITER", "amd"), ("XPU", "xpu"))


@dataclass(frozen=True, slots=True)
class Imported:
    """What a command says. overrides: as ``builder`` takes them, defaults of the engine among them.

    ignored: flags that change no byte; not_carried: flags that do, and that no override says, each with a warning.
    """

    engine: str
    overrides: list[str]
    defaults: list[str]
    understood: list[str]
    ignored: list[str]
    not_carried: list[str]
    unknown: list[str]
    environment: dict[str, str]
    warnings: list[str]
    notes: list[str] = field(default_factory=list[str])


def run_import(config: BuildConfig) -> Outcome:
    """Print a command's configuration. Raises ConfigError, one line, for a command that cannot be read."""
    if not config.command:
        works = "give command='vllm serve …' or command='sglang serve …'"
        raise ConfigError([Problem("command", None, "task=import reads a command", works)])
    found = import_command(config.command)
    document: dict[str, Any] = {
        "schema": 1,
        "engine": found.engine,
        "version": ENGINES[found.engine],
        "overrides": found.overrides,
        "line": shlex.join(["python", "-m", "builder", *found.overrides]),
        "defaults": found.defaults,
        "understood": found.understood,
        "ignored": found.ignored,
        "not_carried": found.not_carried,
        "unknown": found.unknown,
        "environment": found.environment,
        "warnings": found.warnings,
        "notes": found.notes,
    }
    return Outcome(document, 0, lambda: _shown(document), "import.json")


def import_command(text: str) -> Imported:
    """Read one command into overrides."""
    read = read_command(text)
    given, found = dict(read.flags), Found()
    if read.engine == "vllm":
        _take_file(read, given)
    _model(found, read.take("model" if read.engine == "vllm" else "model-path"))
    _READERS[read.engine](read, found)
    _hardware(found, read)
    from_bytes.warn(read, found)
    for flag in read.unknown:
        found.warnings.append(f"{flag.split(' ')[0]} is no flag of {ENGINES[read.engine]}: nothing was made of it")
    return Imported(
        engine=read.engine,
        overrides=found.overrides,
        defaults=found.defaults,
        understood=[f"--{flag}" for flag in given if flag not in read.flags],
        ignored=[f"--{flag}" for flag in read.flags if flag not in found.not_carried],
        not_carried=[f"--{flag}" for flag in found.not_carried],
        unknown=read.unknown,
        environment=read.environment,
        warnings=found.warnings,
        notes=found.notes,
    )


def _take_file(read: Read, given: dict[str, Any]) -> None:
    # vllm serve --config FILE: its keys are flags; those of the command line win.
    path = read.take("config")
    if path is None:
        return
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        works = "give the file where the command can be read, or its flags"
        raise ConfigError([Problem("--config", path, "cannot be read as YAML", works)])
    for key, value in values.items():  # pyright: ignore[reportUnknownVariableType]
        read.flags.setdefault(str(key), value)  # pyright: ignore[reportUnknownArgumentType]
        given.setdefault(str(key), value)  # pyright: ignore[reportUnknownArgumentType]


def _model(found: Found, name: str | None) -> None:
    release = None if name is None else release_of(name)
    if name is None:
        found.warnings.append("the command names no model: add model= or checkpoint=")
    elif (Path(name) / "config.json").is_file():
        found.add("checkpoint", name)
    elif release is not None:
        found.choose("model", release)
        if name.lower() != REPOSITORIES[release].lower():
            found.warnings.append(f"{name} is taken for model={release} by its name: other weights have other bytes")
    else:
        found.warnings.append(f"{name} is no release that builder knows: add model= or checkpoint=")


def release_of(name: str) -> str | None:
    """The release whose name stands last in a hub name or a path, the longest if several do."""
    last = re.sub(r"[^a-z0-9]+", "-", name.rstrip("/").rpartition("/")[2].lower())
    for release, repository in sorted(REPOSITORIES.items(), key=lambda item: -len(item[1])):
        if repository.partition("/")[2].lower() in last:
            return release
    return None


def _hardware(found: Found, read: Read) -> None:
    for word, vendor in _HARDWARE:
        if any(word in name for name in read.environment):
            found.choose("hardware", vendor)
            found.notes.append(f"hardware={vendor} by the environment; add hardware.device=")
            return
    found.notes.append("a command names no hardware: add hardware= and hardware.device=")


def _shown(document: dict[str, Any]) -> Any:
    from rich.text import Text

    lines = [document["line"]]
    keys = ("defaults", "understood", "ignored", "not_carried", "unknown")
    lines += [f"{key.replace('_', ' ')}: {', '.join(document[key])}" for key in keys if document[key]]
    lines += [f"environment: {name}={value}" for name, value in document["environment"].items()]
    lines += [f"warning: {warning}" for warning in document["warnings"]]
    lines += [f"note: {note}" for note in document["notes"]]
    return Text("\n".join(lines))
