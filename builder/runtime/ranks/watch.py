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


class Watch:
    """A thread beside the computation. silence: seconds after which a rank that shows no life is given up.

    One thread talks with the board, and a second one notices when the board's host no longer answers.
    """

    def __init__(self, launched: Launched, silence: float) -> None:
        self.launched, self.silence = launched, silence
        self._board = Board.join(launched, ANSWER_SECONDS)
        self._ended = threading.Event()
        self._seen: dict[int, tuple[int, float]] = {}
        self._answered = self._looked = time.monotonic()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._talk, self._time)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._ended.set()
            for thread in self._threads:
                thread.join()
        elif not isinstance(error, KeyboardInterrupt):
            self.end(error)

    def end(self, error: BaseException) -> None:
        """End this process because of an error, and all others with it; the first cause is said once."""
        failure = failure_of(self.launched.rank, error)
        if failure.lost:
            time.sleep(GRACE_SECONDS)
        self._leave(failure)

    def _talk(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._forgive()
            try:
                self._look()
                self._answered = time.monotonic()
            except (RuntimeError, BuilderError) as error:
                if not self._ended.is_set():
                    self._leave(self._cut_off(first_line(error)), alone=True)

    def _forgive(self) -> None:
        # A rank that was itself stopped (Control-Z) knows nothing of the time in between.
        now = time.monotonic()
        if now - self._looked > max(_STOOD_STILL, self.silence / 2):
            self._seen = {rank: (beats, now) for rank, (beats, _) in self._seen.items()}
            self._answered = now
        self._looked = now

    def _time(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - before > max(_STOOD_STILL, self.silence / 2):
                self._answered = now
            before = now
            if now - self._answered > self.silence:
                self._leave(self._cut_off(f"no answer for {self.silence:g} seconds"), alone=True)

    def _cut_off(self, why: str) -> Failure:
        return Failure(self.launched.rank, _no_answer(self.launched, why), lost=True)

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

    def _leave(self, failure: Failure, *, alone: bool = False) -> None:
        # alone: the board does not answer, and cannot be asked who was first.
        first = True
        if not alone:
            with contextlib.suppress(RuntimeError, BuilderError):
                first = self._board.fail(failure)
        if first and self.launched.by != "builder":
            _say(failure.text)
        os._exit(CUT_OFF if alone else ENDED_EARLY)


class Answers:
    """Before there is a configuration to watch by: ends this process when the board does not answer any more."""

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
        before = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - before > _STOOD_STILL:
                self._heard = now
            before = now
            if now - self._heard > self.seconds:
                _say(_no_answer(self.launched, f"no answer for {self.seconds:g} seconds"))
                os._exit(ENDED_EARLY)


def _no_answer(launched: Launched, why: str) -> str:
    return f"rank {launched.rank} lost the connection to {launched.host}:{launched.port}: {why}"


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
