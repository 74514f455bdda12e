"""Where ranks leave word for each other: a torch store that one process hosts, for what is small and seldom."""

from __future__ import annotations

import json
import math
import pickle
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from textwrap import shorten
from typing import Any

import torch.distributed

from builder.errors import BuilderError, CheckpointError, RankError
from builder.runtime.ranks.launched import Launched

dist: Any = torch.distributed
"""Much of it carries no types."""

_PIECE = 1 << 22
"""A store takes values of up to 8 MiB."""

_FAILURE = "failure"
ANSWER_SECONDS = 15.0
"""How long the host of the board may take to answer."""

JOIN_SECONDS = 120.0
"""How much later than the other ranks the board's host may start."""

_KNOCK_SECONDS = 2.0
_LINE = 300
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Failure:
    """Why a job ended early. lost: the rank only noticed that another one was gone; files: the checkpoint's fault."""

    rank: int
    text: str
    lost: bool = False
    files: bool = False

    def error(self) -> BuilderError:
        """What the process that started the ranks raises."""
        return CheckpointError(self.text) if self.files else RankError(self.text)


class Board:
    """Words under names at ``port``; every value is written once, but for counts. Raises RankError where it is gone."""

    def __init__(self, store: Any, attempt: str = "0") -> None:
        # torchrun's agent keeps its store when it starts the ranks again: each attempt has names of its own.
        self.port: int = store.port
        self._store = dist.PrefixStore(f"attempt/{attempt}", store)

    @classmethod
    def host(cls, host: str = "127.0.0.1", port: int = 0) -> Board:
        """Open a board here; port 0: any that is free. Raises RankError for a port in use."""
        _resolve(host)
        try:
            return cls(dist.TCPStore(host, port, None, True, timedelta(seconds=ANSWER_SECONDS), False))
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"port {port} at {host} cannot be opened: {first_line(error)}; set MASTER_PORT to one that is free"
            ) from None

    @classmethod
    def join(cls, launched: Launched, seconds: float = JOIN_SECONDS) -> Board:
        """The board of a job, once its host is there. Raises RankError where nobody answers within ``seconds``."""
        where = f"rank {launched.rank} cannot reach {launched.host}:{launched.port}"
        _resolve(launched.host)
        _knock(launched.host, launched.port, seconds, where)
        # Whatever answers there need not be a board: torch would wait for it for ever.
        made: list[Any] = []
        thread = threading.Thread(target=_open, args=(launched.host, launched.port, made), daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        if not made or isinstance(made[0], Exception):
            why = first_line(made[0]) if made else f"what listens there has not answered for {ANSWER_SECONDS:g} seconds"
            raise RankError(f"{where}: {why}")
        return cls(made[0], launched.attempt)

    @property
    def store(self) -> Any:
        """For torch's own use, out of the way of the words here."""
        return dist.PrefixStore("torch", self._store)

    def put(self, name: str, value: Any) -> None:
        """Leave a value. Ranks of one job trust each other: it is pickled."""
        data = pickle.dumps(value)
        pieces = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{name}/{number}", piece)
        self._store.set(name, str(len(pieces)))

    def has(self, *names: str) -> bool:
        """Whether all of them are there."""
        return self._store.check(list(names))

    def get(self, name: str) -> Any:
        """A value, as soon as it is there."""
        while not self.has(name):
            time.sleep(_POLL_SECONDS)
        count = int(self._store.get(name))
        return pickle.loads(b"".join(self._store.get(f"{name}/{number}") for number in range(count)))

    def count(self, name: str, more: int = 0) -> int:
        """A counter after adding ``more``."""
        return self._store.add(f"count/{name}", more)

    def wait_for(self, name: str, count: int, seconds: float = math.inf) -> bool:
        """Wait until a counter is there, at most for ``seconds``; whether it is."""
        until = time.monotonic() + seconds
        while self.count(name) < count:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def beats(self, ranks: Iterable[int]) -> list[int]:
        """How often each rank has shown that it lives."""
        return [self.count(f"beat/{rank}") for rank in ranks]

    def beat(self, rank: int) -> None:
        """Show that a rank lives."""
        self.count(f"beat/{rank}", 1)

    def fail(self, failure: Failure) -> bool:
        """Leave the reason why the job ends; whether it is the first."""
        text = json.dumps(asdict(failure))
        return self._store.compare_set(_FAILURE, "", text).decode() == text

    def failure(self) -> Failure | None:
        """The first reason that was left."""
        return Failure(**json.loads(self._store.get(_FAILURE))) if self.has(_FAILURE) else None


def first_line(error: BaseException) -> str:
    """An error in one line, of a length that can be read."""
    lines = str(error).splitlines()
    return shorten(lines[0], _LINE, placeholder=" …") if lines else type(error).__name__


def _resolve(host: str) -> None:
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise RankError(f"MASTER_ADDR={host}: is no address of a machine: {error.strerror or error}") from None


def _knock(host: str, port: int, seconds: float, where: str) -> None:
    # The host of the board may start later than this rank.
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=_KNOCK_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                why = f"{error.strerror or error}, for {seconds:g} seconds"
                raise RankError(f"{where}: {why}; is the first process started there?") from None
            time.sleep(_KNOCK_SECONDS / 10)


def _open(host: str, port: int, made: list[Any]) -> None:
    try:
        made.append(dist.TCPStore(host, port, None, False, timedelta(seconds=ANSWER_SECONDS), False))
    except (RuntimeError, OSError) as error:
        made.append(error)
