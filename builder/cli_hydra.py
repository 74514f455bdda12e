"""Questions about Hydra are answered by Hydra: ``--info``, ``--hydra-help``, ``--cfg hydra`` and completion."""

from __future__ import annotations

import logging
import sys

import hydra
from omegaconf import DictConfig

from builder.cli_flags import Flags
from builder.composition.hydra_groups import PRIMARY, VERSION_BASE
from builder.composition.overrides import is_literal
from builder.paths import conf_dir


def run_hydra(flags: Flags) -> int:
    """Run ``hydra.main`` for the flags that are Hydra's own. Hydra exits 1 where it refuses; that is our 2."""
    argv, sys.argv = sys.argv, [sys.argv[0], *_arguments(flags)]
    root = logging.getLogger()
    level, handlers, loud = root.level, list(root.handlers), logging.raiseExceptions
    # A reader that stopped listening is no reason for logging to print stack frames.
    logging.raiseExceptions = False
    try:
        hydra.main(config_path=str(conf_dir()), config_name=PRIMARY, version_base=VERSION_BASE)(_nothing)()
    except SystemExit as stop:
        return 0 if stop.code in (0, None) else 2
    finally:
        sys.argv = argv
        logging.raiseExceptions = loud
        root.setLevel(level)
        root.handlers[:] = handlers
    return 0


def _nothing(config: DictConfig) -> None:
    raise AssertionError("Hydra was asked a question, not to run")


def _arguments(flags: Flags) -> list[str]:
    words = [f"--{name.replace('_', '-')}" for name in sorted(flags.switches)]
    for name in ("cfg", "package", "info", "config_dir"):
        value = getattr(flags, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", value]
    return [*words, *(text for text in flags.overrides if not is_literal(text))]
