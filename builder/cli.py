"""The command line: ``python -m builder`` and the console script ``builder``.

Exit 0: done, the answer is yes. 1: done, the answer is no. 2: refused, one short message. 130: interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli_flags import Flags, read_flags
from builder.cli_ranks import as_launched
from builder.errors import BuilderError, ConfigError, Problem
from builder.paths import conf_dir, set_user_folders

if TYPE_CHECKING:
    from rich.console import RenderableType

    from builder.composition import Composer, Composition
    from builder.outcome import Outcome

REFUSED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return _guarded(lambda: as_launched(lambda: _guarded(lambda: _run(arguments))))


def _guarded(run: Callable[[], int]) -> int:
    try:
        _prepare_output()
        code = run()
        sys.stdout.flush()
        return code
    except BuilderError as error:
        _say(_refusal(error))
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at exit: give it a place to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        _say(f"builder: {error.filename or 'standard output'}: {error.strerror or error}")
        return REFUSED
    except RecursionError:
        _say("builder: a value or a file is nested too deeply, or contains itself; write it flat")
        return REFUSED


def _prepare_output() -> None:
    """What a terminal or a file cannot spell is shown as a question mark; a closed standard output takes nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the whole run
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _refusal(error: BuilderError) -> str:
    problems = error.problems if isinstance(error, ConfigError) else ()
    lines = [" ".join(str(line).split()) for line in problems or (error,)]
    if len(lines) == 1:
        return f"builder: {lines[0]}"
    return "\n".join([f"builder: {len(lines)} problems", *(f"  {line}" for line in lines)])


def _run(arguments: list[str]) -> int:
    flags = read_flags(arguments)
    command = flags.command
    if flags.cfg is None and ("resolve" in flags.switches or flags.package is not None):
        flag = "--resolve" if "resolve" in flags.switches else "--package"
        raise ConfigError([Problem(flag, None, "says how to print a configuration", "add --cfg job")])
    return _COMMANDS[command](flags)


def _composer(flags: Flags) -> Composer:
    from builder.composition import Composer, shared_composer
    from builder.composition.overrides import take_search_path
    from builder.composition.primary import find_primary, read_primary

    found = find_primary(conf_dir(), flags.config_path, flags.config_name, flags.config_dir)
    search, flags.overrides = take_search_path(flags.overrides)
    folders = [*([flags.config_dir] if flags.config_dir else []), *search]
    set_user_folders([*folders, *([found.parent] if found else [])])
    if found is None and not folders:
        return shared_composer()
    return Composer(folders, read_primary(found) if found else None)


def _run_task(flags: Flags) -> int:
    composition = _composer(flags).compose(flags.overrides)
    config = composition.config()

    from builder.planning import files
    from builder.planning.tasks import runner
    from builder.schema.config import COMPUTING_TASKS, warnings

    if config.task in COMPUTING_TASKS:
        _let_threads_rest()
    run = runner(config.task)
    for line in warnings(config):
        warn(line)
    # A conversion makes its own folder, once it knows that it may.
    if config.out is not None and config.task != "convert":
        files.prepare(config.out)
    outcome = run(config)
    if config.out is not None:
        _save(files.prepare(config.out), composition, config, outcome)
    if config.output == "json":
        print_json(outcome.document)
    else:
        print_table(outcome.shown())
    return outcome.exit_code


def _let_threads_rest() -> None:
    """Before torch is loaded: its idle threads spin for milliseconds, which costs much where others want the cores."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _save(folder: Path, composition: Composition, config: Any, outcome: Outcome) -> None:
    from builder import __version__
    from builder.composition.primary import saved_text
    from builder.planning import files

    files.write(folder / outcome.saved, json.dumps(outcome.document, indent=1) + "\n")
    files.write(folder / "config.yaml", saved_text(config, composition.choices, composition.named, __version__))


def _run_sweep(flags: Flags) -> int:
    from builder.cli_sweep import run_sweep

    return run_sweep(_composer(flags), flags.overrides)


def warn(text: str) -> None:
    """Say something on standard error that is no reason to stop."""
    print(f"builder: warning: {text}", file=sys.stderr)


def print_json(document: Any) -> None:
    """Print the one JSON document of a run."""
    print(json.dumps(document, indent=1, allow_nan=False))


def print_table(table: RenderableType, width: int | None = None) -> None:
    """Print a table. width: where standard output is no terminal and COLUMNS does not say."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(file=sys.stdout, width=None if known else width).print(table)


def _show_config(flags: Flags) -> int:
    if flags.cfg != "job":
        return _ask_hydra(flags)
    composition = _composer(flags).compose(flags.overrides)
    composition.refuse()
    from builder.composition.show import node_text

    print(node_text(composition, flags.package, resolve="resolve" in flags.switches), end="")
    return 0


def _show_help(flags: Flags) -> int:
    from builder.cli_help import help_text
    from builder.composition.primary import find_primary

    find_primary(conf_dir(), None, None, flags.config_dir)
    print(help_text(flags.config_dir), end="")
    return 0


def _show_version(flags: Flags) -> int:
    from builder import __version__

    print(f"builder {__version__}")
    return 0


def _complete(flags: Flags) -> int:
    shells = {"install", "uninstall", "query"}
    if len(flags.overrides) != 1 or flags.overrides[0].partition("=")[0] not in shells:
        works = "write builder -sc install=bash (or fish, zsh; uninstall=…)"
        raise ConfigError([Problem("--shell-completion", None, "needs a shell", works)])
    return _delegate(flags)


def _ask_hydra(flags: Flags) -> int:
    """Refuse what is wrong in our own words; Hydra would advise to add it with ``+``."""
    _composer(flags).compose(flags.overrides).refuse()
    return _delegate(flags)


def _delegate(flags: Flags) -> int:
    """Hand a question about Hydra to Hydra itself."""
    from builder.cli_hydra import run_hydra

    return run_hydra(flags)


_COMMANDS = {
    "help": _show_help,
    "hydra_help": _ask_hydra,
    "version": _show_version,
    "run": _run_task,
    "multirun": _run_sweep,
    "shell_completion": _complete,
    "cfg": _show_config,
    "info": _ask_hydra,
}
