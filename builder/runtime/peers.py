"""What a rank's stage asks of the ranks around it: the stream before, the decisions after. Alone, it asks nothing."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from builder.checkpoint.progress import Progress
from builder.components.stage.module import Stage


class Peers(Protocol):
    """The ranks that compute one model together, as seen from one of them.

    stages: how many passes may be under way at once; last: this stage has the logits; leads: this rank reports;
    speaks: of the ranks that know a replica's result, this one hands it on; replica, replicas: which share of the
    requests is this rank's.
    """

    stages: int
    last: bool
    leads: bool
    speaks: bool
    replica: int
    replicas: int

    def join(self, stage: Stage) -> None:
        """Hook a stage's divided parts to those of the other ranks."""
        ...

    def progress(self, total: int) -> Progress:
        """What shows how far loading ``total`` bytes here is."""
        ...

    def receive(self, tokens: int) -> Tensor | None:
        """The stream of the stage before, [tokens, hc_mult, hidden]; None where there is none."""
        ...

    def send(self, stream: Tensor) -> Tensor | None:
        """Hand a stream to the next stage; on the last stage it is returned instead."""
        ...

    def publish(self, decided: Tensor) -> None:
        """Tell the stages before what the last one decided: [requests, width], int64."""
        ...

    def decided(self, requests: int, width: int) -> Tensor:
        """What the last stage published for the oldest pass that is not settled: [requests, width], int64."""
        ...

    def another_round(self, busy: bool) -> bool:
        """Whether anybody that this rank computes with still has work; ends a pass. busy: this rank has."""
        ...

    def collect(self, found: Any) -> list[Any] | None:
        """What the replicas' speakers found, at the rank that leads; None elsewhere."""
        ...


class Alone:
    """One process, one stage."""

    stages, replica, replicas = 1, 0, 1
    last = leads = speaks = True

    def join(self, stage: Stage) -> None:
        """See ``Peers``."""

    def progress(self, total: int) -> Progress:
        """See ``Peers``."""
        return Progress(total)

    def receive(self, tokens: int) -> Tensor | None:
        """See ``Peers``."""
        del tokens
        return None

    def send(self, stream: Tensor) -> Tensor | None:
        """See ``Peers``."""
        return stream

    def publish(self, decided: Tensor) -> None:
        """See ``Peers``."""

    def decided(self, requests: int, width: int) -> Tensor:
        """See ``Peers``."""
        raise AssertionError("the only stage has decided by itself")

    def another_round(self, busy: bool) -> bool:
        """See ``Peers``."""
        return busy

    def collect(self, found: Any) -> list[Any] | None:
        """See ``Peers``."""
        return [found]
