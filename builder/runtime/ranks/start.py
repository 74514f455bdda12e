"""Starts the ranks of one machine as processes of their own, and waits for what they find."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from builder.errors import ConfigError, Problem
from builder.runtime.ranks.board import Board, Failure
from builder.runtime.ranks.launched import CUT_OFF, PARENT
from builder.runtime.ranks.watch import GRACE_SECONDS
from builder.schema.config import BuildConfig

MOST_HERE = 64
_POLL_SECONDS = 0.05
_STANDARD_ERROR = 2
_HOST = "127.0.0.1"
_ROOT = Path(__file__).resolve().parents[3]
"""Where the package builder lies."""

Process = subprocess.Popen[bytes]


def run_ranks(config: BuildConfig) -> Any:
    """Run a configuration's task on as many processes as it has ranks; returns what its leader found.

    They get the configuration as it is. Raises RankError with the first cause where one of them ends early, or
    CheckpointError where that was the files; none is left running, whatever happens.
    """
    size = config.parallel.world_size
    if size > MOST_HERE:
        reason = f"builder starts at most {MOST_HERE} ranks on one machine"
        raise ConfigError([Problem("pp·dp·tp", size, reason, "start them on several with torchrun or srun")])
    board = Board.host(_HOST)
    board.put("config", config)
    with _processes(size, board.port, shows=config.output == "table") as processes:
        _wait(processes, board)
    return board.get("answer")


@contextlib.contextmanager
def _processes(size: int, port: int, *, shows: bool) -> Generator[list[Process]]:
    processes: list[Process] = []
    try:
        for rank in range(size):
            processes.append(_start(rank, size, port, shows=shows and rank == 0))  # noqa: PERF401 - those started so far are ended if one fails
        yield processes
    finally:
        # They write no file and hold nothing that needs to be put away.
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _start(rank: int, size: int, port: int, *, shows: bool) -> Process:
    # shows: it may write text as it is made; what others print by accident must not stand among it.
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    threads = max(1, len(os.sched_getaffinity(0)) // size)
    # The ranks import the builder that runs here, wherever it lies.
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "PYTHONPATH": path,
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": _HOST,
        PARENT: str(os.getpid()),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "builder.runtime.ranks"],
        env=told,
        stdin=subprocess.DEVNULL,
        stdout=None if shows else _STANDARD_ERROR,
    )


def _wait(processes: list[Process], board: Board) -> None:
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise _cause(board, rank, code).error()
        if all(code == 0 for code in codes):
            return
        time.sleep(_POLL_SECONDS)


def _cause(board: Board, rank: int, code: int) -> Failure:
    """The first cause: what a rank left on the board, or how its process ended."""
    until = time.monotonic() + GRACE_SECONDS
    while code > 0 and time.monotonic() < until:
        if (left := board.failure()) is not None:
            return left
        time.sleep(_POLL_SECONDS)
    if code == CUT_OFF:
        return Failure(
            rank, f"rank {rank} had no answer from builder, which stood still for too long; all were stopped"
        )
    ended = f"was killed by signal {-code} ({_signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
    failure = Failure(rank, f"rank {rank} {ended}; the others were stopped")
    return failure if board.fail(failure) else board.failure() or failure


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
