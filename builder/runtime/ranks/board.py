"""Where ranks leave word for each other: a torch store that one process hosts, for what is small and seldom."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed

from builder.errors import RankError
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

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Failure:
    """Why a job ended early. lost: the rank only noticed that another one was gone."""

    rank: int
    text: str
    lost: bool = False


class Board:
    """Words under names; every value is written once, but for counts. Raises RankError where the host is gone."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def host(cls, host: str = "127.0.0.1", port: int = 0) -> Board:
        """Open a board here; port 0: any that is free. Raises RankError for a port in use."""
        try:
            return cls(dist.TCPStore(host, port, None, True, timedelta(seconds=ANSWER_SECONDS), False))
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"port {port} at {host} cannot be opened: {first_line(error)}; set MASTER_PORT to one that is free"
            ) from None

    @classmethod
    def join(cls, launched: Launched, seconds: float = JOIN_SECONDS) -> Board:
        """The board of a job. Raises RankError where nobody answers."""
        try:
            return cls(dist.TCPStore(launched.host, launched.port, None, False, timedelta(seconds=seconds), False))
        except (RuntimeError, OSError) as error:
            where = f"{launched.host}:{launched.port}"
            raise RankError(f"rank {launched.rank} cannot reach {where}: {first_line(error)}") from None

    @property
    def port(self) -> int:
        """Where it is."""
        return self._store.port

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

    def wait_for(self, name: str, count: int) -> None:
        """Wait until a counter is there."""
        while self.count(name) < count:
            time.sleep(_POLL_SECONDS)

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
    """An error in one line."""
    lines = str(error).splitlines()
    return lines[0].strip() if lines else type(error).__name__
