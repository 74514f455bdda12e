"""What a task answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One JSON document, and 0 for yes or 1 for no. shown: makes what people see instead (a rich renderable).

    saved: the file name that the document gets in ``out=DIR``; row: its figures as a row of a sweep, where it makes one
    (a plan's row is the sweep's own affair).
    """

    document: dict[str, Any]
    exit_code: int
    shown: Callable[[], Any]
    saved: str
    row: dict[str, Any] | None = None
