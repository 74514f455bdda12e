"""A progress bar on standard error, for loads that take a while in front of somebody."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_FEWEST_BYTES = 1 << 30


class Progress:
    """Counts bytes; shows them if there are many and standard error is a terminal."""

    def __init__(self, total: int, words: str = "loading") -> None:
        self._total, self._words = total, words
        self._shown: tuple[Bar, TaskID] | None = None

    def advance(self, size: int) -> None:
        """So many bytes more are done."""
        if self._shown is not None:
            bar, task = self._shown
            bar.advance(task, size)

    def __enter__(self) -> Progress:
        if self._total > _FEWEST_BYTES and sys.stderr.isatty():
            bar = _bar()
            bar.start()
            self._shown = bar, bar.add_task(self._words, total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    return Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    )
