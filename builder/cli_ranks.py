"""The same command line in every process of a launcher: the first one reads it, the others wait for what it says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from builder.errors import RankError
from builder.runtime.ranks.launched import launched


def as_launched(run: Callable[[], int]) -> int:
    """``run``, in the one process that reads the command line; returns its exit code. Raises BuilderError."""
    place = launched()
    if place is None or place.size == 1:
        return run()
    from builder.runtime.ranks.worker import dismiss, follow

    if place.rank:
        return follow(place)
    code = run()
    # Where the others cannot be reached, run() has said so.
    with contextlib.suppress(RankError):
        dismiss(place)
    return code
