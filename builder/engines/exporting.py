"""``task=export``: the serve command of another engine for a configuration."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from builder.assembly.stages import assemble
from builder.engines import to_sglang, to_vllm
from builder.engines.command import ENGINES, REPOSITORIES, Command, model_word
from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.planning.rules import NOTE, REFUSAL, WARNING, findings
from builder.schema.config import BuildConfig

WARNED = ("pp-drafter", "kv-dtype")
"""Rules of versions before 0.33.0, or of some kernels only: the command is written, with a warning."""

WIDTH = 76
"""Characters of a line of a shown command."""

_WRITERS = {"vllm": to_vllm, "sglang": to_sglang}


def run_export(config: BuildConfig) -> Outcome:
    """Write the command that equals the configuration. Raises ConfigError for what the engine would stop at."""
    assert config.export is not None, "task=export has its keys"
    command, what = export(config, config.export.engine), config.export.what
    document: dict[str, Any] = {
        "schema": 1,
        "engine": command.engine,
        "version": ENGINES[command.engine],
        "command": command.argv,
        "text": command.text,
        "environment": command.environment,
        "yaml": yaml_text(command),
        "warnings": command.warnings,
        "notes": command.notes,
    }
    return Outcome(document, 0, lambda: _shown(document, what), "export.json")


def export(config: BuildConfig, engine: str) -> Command:
    """The command of ``engine`` that equals ``config``."""
    writer, model, assembly = _WRITERS[engine], model_word(config), assemble(config)
    said = findings(config, assembly, engine)
    found = [one.problem() for one in said if one.severity == REFUSAL and one.rule not in WARNED]
    found += writer.refusals(config)
    if model is None:
        found.insert(0, _nameless(config))
    if found or model is None:
        raise ConfigError(found)
    command = writer.write(config, model, assembly.partition)
    command.warnings += [str(one) for one in said if one.severity == WARNING or one.rule in WARNED]
    command.notes += [str(one) for one in said if one.severity == NOTE and one.rule not in WARNED]
    return command


def yaml_text(command: Command) -> str:
    """The settings as the file that the engine's ``--config`` reads."""
    values = {flag: True if value is None else value for flag, value in command.settings.items()}
    values = {flag.removeprefix("no-"): value if flag[:3] != "no-" else False for flag, value in values.items()}
    model = {"model": command.program[2]} if command.engine == "vllm" else {}
    return yaml.safe_dump({**model, **values}, sort_keys=False, width=1000)


def _nameless(config: BuildConfig) -> Problem:
    known = ", ".join(REPOSITORIES)
    return Problem("model", config.model.name, "has no name on the hub", f"give checkpoint=DIR, or use one of {known}")


def _folded(line: str) -> str:
    # At spaces, which JSON takes as line ends too: what a terminal shows can be copied into a shell.
    text = line.removesuffix(" \\")
    folded = textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    return folded + line[len(text) :]


def _shown(document: dict[str, Any], what: str) -> Any:
    from rich.console import Group
    from rich.text import Text

    environment = "".join(f"# environment: {name}={value}\n" for name, value in document["environment"].items())
    body = document["text"] if what == "command" else environment + document["yaml"].rstrip()
    lines = [Text("\n".join(_folded(line) for line in body.splitlines()))]
    lines += [Text(f"warning: {warning}") for warning in document["warnings"]]
    lines += [Text(f"note: {note}") for note in document["notes"]]
    return Group(*lines)
