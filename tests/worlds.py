"""Processes that play the ranks of one configuration after another, without starting anew for each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from builder.runtime.model import Model
from builder.runtime.ranks.board import Board
from builder.runtime.ranks.launched import Launched
from builder.schema.config import BuildConfig

Job = Callable[[Model], Any]
SECONDS = 120


class Troupe:
    """``size`` processes. ``play`` returns what each rank's job returned, in rank order."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_act, args=(theirs,), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def play(self, config: BuildConfig, job: Job) -> list[Any]:
        """One configuration; ``job`` is a function of a module that the processes can import."""
        world, board = config.parallel.world_size, Board.host()
        for rank, pipe in enumerate(self.pipes[:world]):
            place = Launched("builder", rank, world, rank, world, "127.0.0.1", board.port, hosts_board=False)
            pipe.send((config, place, job))
        return [self._answer(pipe, board) for pipe in self.pipes[:world]]

    def _answer(self, pipe: Any, board: Board) -> Any:
        if not pipe.poll(SECONDS):
            raise AssertionError(f"no answer: {board.failure()}")
        try:
            return pipe.recv()
        except EOFError:
            raise AssertionError(f"a rank ended: {board.failure()}") from None

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.join()


def _act(pipe: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from builder.runtime.ranks.worker import take_part

    while True:
        config, place, job = pipe.recv()
        pipe.send(take_part(config, place, Board.join(place), job))


@contextmanager
def troupe(size: int) -> Iterator[Troupe]:
    """So many processes, for a while."""
    actors = Troupe(size)
    try:
        yield actors
    finally:
        actors.close()
