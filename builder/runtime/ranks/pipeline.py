"""The way through the stages: streams to the next one, decisions back to all before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed
"""Much of it carries no types."""

_STREAM, _DECIDED = 1, 2
"""Tags: a stage may be told what was decided while the next stream is on its way."""


class Pipeline:
    """One rank's place among the ranks with its tp and dp coordinates, one per stage.

    Streams are [tokens, hc_mult, hidden] in ``dtype``. ``sent``: bytes of streams and of decisions this rank sent.
    """

    def __init__(self, ranks: Sequence[int], stage: int, shape: tuple[int, int], dtype: torch.dtype, device: Any):
        self.ranks, self.stage, self.shape, self.dtype, self.device = list(ranks), stage, shape, dtype, device
        self.sent = {_STREAM: 0, _DECIDED: 0}
        self._under_way: list[tuple[Any, Tensor]] = []

    @property
    def last(self) -> bool:
        """The stage with the logits."""
        return self.stage == len(self.ranks) - 1

    @property
    def stream_bytes(self) -> int:
        """Bytes of streams sent so far."""
        return self.sent[_STREAM]

    @property
    def decided_bytes(self) -> int:
        """Bytes of decisions sent so far."""
        return self.sent[_DECIDED]

    def receive(self, tokens: int) -> Tensor | None:
        """The stream of the stage before: [tokens, hc_mult, hidden]; None on the first."""
        if self.stage == 0:
            return None
        return self._take(self.ranks[self.stage - 1], (tokens, *self.shape), self.dtype, _STREAM)

    def send(self, stream: Tensor) -> Tensor | None:
        """A stream [tokens, hc_mult, hidden] to the next stage; the last one keeps it."""
        if self.last:
            return stream
        if tuple(stream.shape[1:]) != self.shape or stream.dtype != self.dtype:
            found = f"{tuple(stream.shape)} {stream.dtype}"
            raise ValueError(f"stage {self.stage} sends [tokens, *{self.shape}] in {self.dtype}, not {found}")
        self._give(self.ranks[self.stage + 1], stream, _STREAM)
        return None

    def publish(self, decided: Tensor) -> None:
        """What the last stage decided, to all stages before."""
        for rank in self.ranks[:-1]:
            self._give(rank, decided.to(self.device), _DECIDED)

    def decided(self, requests: int, width: int) -> Tensor:
        """What the last stage published: [requests, width], int64."""
        return self._take(self.ranks[-1], (requests, width), torch.int64, _DECIDED).cpu()

    def drain(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def _give(self, rank: int, tensor: Tensor, tag: int) -> None:
        # The memory must live until it has been sent.
        tensor = tensor.contiguous()
        self._under_way = [(work, kept) for work, kept in self._under_way if not work.is_completed()]
        self._under_way.append((dist.isend(tensor, dst=rank, tag=tag), tensor))
        self.sent[tag] += tensor.nbytes

    def _take(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, tag: int) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        dist.recv(tensor, src=rank, tag=tag)
        return tensor
