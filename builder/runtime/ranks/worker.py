"""What a rank does from its start to its end."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from builder.assembly.stages import assemble
from builder.errors import ConfigError, Problem
from builder.runtime.jobs import JOBS, Job
from builder.runtime.model import load_model, torch_device
from builder.runtime.ranks.board import JOIN_SECONDS, Board
from builder.runtime.ranks.launched import Launched
from builder.runtime.ranks.member import Member, world
from builder.runtime.ranks.watch import Answers, Watch
from builder.schema.config import BuildConfig

_CONFIG, _DISMISSED, _ANSWER = "config", "dismissed", "answer"
_DONE, _LEFT = "done", "left"
_POLL_SECONDS = 0.05


def lead(config: BuildConfig, place: Launched) -> Any:
    """Rank 0 under a launcher: give the others the configuration, and compute with them; returns what was found."""
    board = _board(place)
    if board.has(_CONFIG):
        reason = f"the processes that {place.by} started compute once"
        works = "start builder without a launcher, which starts its ranks itself, or once for each"
        raise ConfigError([Problem("task", config.task, reason, works)])
    board.put(_CONFIG, config)
    return take_part(config, place, board)


def follow(place: Launched) -> int:
    """Any other rank, or any that builder started: wait for the configuration, and compute. Returns an exit code.

    Whether the answer is yes is rank 0's to say: here it is 0 also where there was nothing to compute.
    """
    board = _board(place)
    with Answers(place) as answers:
        while not board.has(_CONFIG):
            if board.has(_DISMISSED):
                board.count(_LEFT, 1)
                return 0
            answers.heard()
            time.sleep(_POLL_SECONDS)
    config: BuildConfig = board.get(_CONFIG)
    answer = take_part(config, place, board)
    if place.rank == 0:
        board.put(_ANSWER, answer)
    return 0


def dismiss(place: Launched) -> None:
    """Rank 0 under a launcher has ended: the others end too, if they still wait for something to compute."""
    board = _board(place)
    if not board.has(_CONFIG):
        board.put(_DISMISSED, True)
        board.wait_for(_LEFT, place.size - 1, JOIN_SECONDS)


def take_part(config: BuildConfig, place: Launched, board: Board, job: Job | None = None) -> Any:
    """Compute with all other ranks: the task's job, or another one. An error ends this process and all others."""
    job = job or JOBS[config.task]
    parallel = config.parallel
    with Watch(place, parallel.silence_seconds):
        device = torch_device(config, place.local_rank, place.local_size)
        with world(board, place, device, parallel.message_seconds):
            assembly = assemble(config)
            member = Member(assembly, place.rank, device, board)
            answer = job(load_model(assembly, device, member, place.rank))
            member.pipeline.drain()
            board.put(f"done/{place.rank}", True)
            board.count(_DONE, 1)
            board.wait_for(_DONE, place.size)
    # The board's host is the last to go.
    if place.rank:
        board.count(_LEFT, 1)
    elif place.hosts_board:
        board.wait_for(_LEFT, place.size - 1)
    return answer


@cache
def _board(place: Launched) -> Board:
    return Board.host(place.host, place.port) if place.hosts_board else Board.join(place)
