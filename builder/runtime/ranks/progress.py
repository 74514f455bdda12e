"""One progress bar for what all ranks load."""

from __future__ import annotations

import time
from types import TracebackType

from builder.checkpoint.progress import Progress
from builder.runtime.ranks.board import Board

_TOTAL, _LOADED, _READY = "load/total", "load/done", "load/ready"
_SECONDS_BETWEEN_WORDS = 0.2


class SharedProgress(Progress):
    """Counts on the board. It ends when every rank has loaded; rank 0 shows the bar."""

    def __init__(self, total: int, board: Board, ranks: int, *, shows: bool) -> None:
        self._board, self._ranks, self._shows = board, ranks, shows
        self._untold, self._told, self._at = 0, 0, time.monotonic()
        board.count(_TOTAL, total)
        board.count("load/known", 1)
        board.wait_for("load/known", ranks)
        super().__init__(board.count(_TOTAL) if shows else 0)

    def advance(self, size: int) -> None:
        """See ``Progress``."""
        self._untold += size
        if time.monotonic() - self._at > _SECONDS_BETWEEN_WORDS:
            self._tell()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._tell()
            self._board.count(_READY, 1)
            while self._board.count(_READY) < self._ranks:
                time.sleep(_SECONDS_BETWEEN_WORDS / 10)
                self._tell()
        super().__exit__(kind, error, trace)

    def _tell(self) -> None:
        # One word for the others, and for the bar what all of them have said.
        loaded = self._board.count(_LOADED, self._untold)
        self._untold, self._at = 0, time.monotonic()
        if self._shows:
            super().advance(loaded - self._told)
            self._told = loaded
