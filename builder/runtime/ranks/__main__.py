"""A rank that builder started: ``python -m builder.runtime.ranks``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

from builder.errors import BuilderError
from builder.runtime.ranks.launched import ENDED_EARLY, PARENT, launched

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> int:
    """Wait for the configuration, and compute; returns an exit code."""
    _die_with_parent()
    # Control-C reaches every process of a terminal: the builder that started this rank ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imported here: torch takes seconds, and the parent may be gone by then.
    from builder.runtime.ranks.worker import follow

    place = launched()
    assert place is not None, "started with a rank"
    try:
        return follow(place)
    except (BuilderError, RuntimeError):
        # The builder that started this rank is gone, and with it everybody who would read a message.
        return ENDED_EARLY


def _die_with_parent() -> None:
    # Linux ends the rank when the builder that started it is killed.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != int(os.environ.get(PARENT, os.getppid())):
        os._exit(ENDED_EARLY)


if __name__ == "__main__":
    sys.exit(main())
