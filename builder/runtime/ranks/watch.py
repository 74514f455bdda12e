"""Sees to it that no rank outlives the others: everyone shows that it lives, and everyone ends when one does not."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType

from builder.errors import BuilderError, CheckpointError
from builder.runtime.ranks.board import ANSWER_SECONDS, JOIN_SECONDS, Board, Failure, first_line
from builder.runtime.ranks.launched import CUT_OFF, ENDED_EARLY, Launched

BEAT_SECONDS = 0.5
_STOOD_STILL = 5.0
GRACE_SECONDS = 1.5
"""A rank that lost another one lets it, or whoever started it, say why first."""


class Answers:
    """Ends this process when the board's host has not answered for ``seconds``."""

    def __init__(self, launched: Launched, seconds: float = ANSWER_SECONDS) -> None:
        self.launched, self.seconds = launched, seconds
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Answers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def heard(self) -> None:
        """The board has just answered."""
        self._heard = time.monotonic()

    def _run(self) -> None:
        pulse = _Pulse()
        while not self._ended.wait(BEAT_SECONDS):
            if pulse.stood_still():
                self.heard()
            if time.monotonic() - self._heard > self.seconds:
                cut_off(self.launched, f"no answer for {self.seconds:g} seconds")


class _Pulse:
    # A process that was itself stopped (Control-Z) knows nothing of the time in between.
    def __init__(self) -> None:
        self._last = time.monotonic()

    def stood_still(self) -> bool:
        before, self._last = self._last, time.monotonic()
        return self._last - before > _STOOD_STILL


class Watch:
    """A thread beside the computation. silence: seconds after which a rank that shows no life is given up.

    Its thread talks with the board; ``Answers`` notices when that no longer answers.
    """

    def __init__(self, launched: Launched, silence: float) -> None:
        self.launched, self.silence = launched, silence
        self._board = Board.join(launched, ANSWER_SECONDS)
        self._ended = threading.Event()
        self._seen: dict[int, tuple[int, float]] = {}
        self._answers = Answers(launched, silence)
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def __enter__(self) -> Watch:
        self._answers.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._ended.set()
            self._thread.join()
            self._answers.__exit__(None, None, None)
        elif not isinstance(error, KeyboardInterrupt):
            self.end(error)

    def end(self, error: BaseException) -> None:
        """End this process because of an error, and all others with it; the first cause is said once."""
        failure = failure_of(self.launched.rank, error)
        if failure.lost:
            time.sleep(GRACE_SECONDS)
        self._leave(failure)

    def _talk(self) -> None:
        pulse = _Pulse()
        while not self._ended.wait(BEAT_SECONDS):
            if pulse.stood_still():
                self._seen.clear()
            try:
                self._look()
                self._answers.heard()
            except (RuntimeError, BuilderError) as error:
                if not self._ended.is_set():
                    cut_off(self.launched, first_line(error))

    def _look(self) -> None:
        self._board.beat(self.launched.rank)
        if self._board.failure() is not None:
            os._exit(ENDED_EARLY)
        # Rank 0 watches everybody, everybody watches rank 0: one of the two notices.
        watched = range(1, self.launched.size) if self.launched.rank == 0 else [0]
        now = time.monotonic()
        for rank, beats in zip(watched, self._board.beats(watched), strict=True):
            if self._seen.get(rank, (-1, now))[0] != beats:
                self._seen[rank] = beats, now
            elif now - self._seen[rank][1] > self._patience(beats) and not self._board.has(f"done/{rank}"):
                self._leave(Failure(rank, f"rank {rank} {self._fate(beats)}"))

    def _patience(self, beats: int) -> float:
        # Ranks start at different times: reading torch from a busy disk takes a while.
        return self.silence if beats else max(self.silence, JOIN_SECONDS)

    def _fate(self, beats: int) -> str:
        if not beats:
            return f"has not started within {self._patience(beats):g} seconds of the others"
        return f"has shown no life for {self.silence:g} seconds: it hangs, or its machine is gone"

    def _leave(self, failure: Failure) -> None:
        first = True
        with contextlib.suppress(RuntimeError, BuilderError):
            first = self._board.fail(failure)
        if first and self.launched.by != "builder":
            _say(failure.text)
        os._exit(ENDED_EARLY)


def cut_off(launched: Launched, why: str) -> None:
    """End this process without the board, which cannot be asked who was first; a builder above knows by the code."""
    if launched.by == "builder":
        os._exit(CUT_OFF)
    _say(f"rank {launched.rank} lost the connection to {launched.host}:{launched.port}: {why}")
    os._exit(ENDED_EARLY)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"builder: {text}\n")
        sys.stderr.flush()


def failure_of(rank: int, error: BaseException) -> Failure:
    """What a rank says of the error that ends it."""
    if isinstance(error, BuilderError):
        return Failure(rank, " ".join(str(error).split()), files=isinstance(error, CheckpointError))
    text = first_line(error)
    if type(error).__name__ in _LOST_TYPES or (isinstance(error, RuntimeError) and any(w in text for w in _LOST)):
        return Failure(rank, f"rank {rank} lost the connection to another rank: {text}", lost=True)
    return Failure(rank, f"rank {rank} stopped: {type(error).__name__}: {text}{_place(error)}")


_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Timed out waiting",
    "Broken pipe",
    "connectFullMesh failed",
    "ncclRemoteError",
    "NCCL communicator was aborted",
)
_LOST_TYPES = ("DistNetworkError", "DistStoreError")
"""What the libraries say where another rank is gone."""


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
