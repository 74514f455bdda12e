"""One rank among many: its groups, its neighbours, and its part of every pass."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from builder.assembly.stages import Assembly
from builder.checkpoint.progress import Progress
from builder.components.base.module import TORCH_DTYPES
from builder.components.stage.module import Stage
from builder.runtime.ranks.board import Board
from builder.runtime.ranks.exchange import Exchange
from builder.runtime.ranks.groups import expert_parallel, tensor_parallel
from builder.runtime.ranks.joins import Joiner
from builder.runtime.ranks.launched import Launched
from builder.runtime.ranks.pipeline import Pipeline
from builder.runtime.ranks.progress import SharedProgress

dist: Any = torch.distributed
"""Much of it carries no types."""

BACKENDS = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}
"""torch.distributed's backend for a kind of device (rccl answers to nccl)."""


class Member:
    """See ``runtime.peers.Peers``. Every rank makes its own, at the same time."""

    def __init__(self, assembly: Assembly, rank: int, device: torch.device, board: Board) -> None:
        parallel = assembly.config.parallel
        self.board, self.rank, self.assembly = board, rank, assembly
        self.place = place = assembly.place(rank)
        self.stages, self.replica, self.replicas = parallel.pp, place.dp, parallel.dp
        spec = assembly.stages[place.pp]
        dtype = TORCH_DTYPES[spec.activation]
        self.tp, ep = tensor_parallel(parallel, rank), expert_parallel(parallel, rank)
        self.exchange = Exchange(ep, self.tp, dtype, device) if ep is not None else None
        self.pipeline = Pipeline(
            [(stage * parallel.dp + place.dp) * parallel.tp + place.tp for stage in range(parallel.pp)],
            place.pp,
            (spec.streams, assembly.config.model.hidden_size),
            dtype,
            device,
        )
        # Replicas that share experts meet in every pass; others need not know of each other.
        self._meets = self.exchange is not None and parallel.ep > parallel.tp
        self.last, self.leads = self.pipeline.last, rank == 0
        self.speaks = self.last and place.tp == 0
        self.receive, self.send = self.pipeline.receive, self.pipeline.send
        self.publish, self.decided = self.pipeline.publish, self.pipeline.decided

    def join(self, stage: Stage) -> None:
        """Hook a stage's divided parts to those of the other ranks."""
        Joiner(self.assembly.shards(self.place), self.tp, self.exchange).join(stage)

    def another_round(self, busy: bool) -> bool:
        """See ``Peers``."""
        return self.exchange.finish(busy) if self.exchange is not None and self._meets else busy

    def collect(self, found: Any) -> list[Any] | None:
        """See ``Peers``."""
        if self.speaks:
            self.board.put(f"found/{self.replica}", found)
        if not self.leads:
            return None
        return [self.board.get(f"found/{replica}") for replica in range(self.replicas)]

    def progress(self, total: int) -> Progress:
        """One bar for what all ranks load; rank 0 shows it."""
        return SharedProgress(total, self.board, self.assembly.config.parallel.world_size, shows=self.leads)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes this rank has handed to others, by what they were."""
        return {
            "stream": self.pipeline.stream_bytes,
            "decided": self.pipeline.decided_bytes,
            "tensor_parallel": self.tp.sent if self.tp is not None else 0,
            "expert_parallel": self.exchange.group.sent if self.exchange is not None else 0,
        }


@contextlib.contextmanager
def world(board: Board, place: Launched, device: torch.device, seconds: float) -> Generator[None]:
    """torch's process group of all ranks. seconds: how long a message may be waited for. Raises RuntimeError."""
    backend = BACKENDS[device.type]
    if backend == "gloo":
        _choose_interface(place.host)
    else:
        torch.get_device_module(device).set_device(device)
    wait = timedelta(seconds=seconds)
    dist.init_process_group(backend, store=board.store, rank=place.rank, world_size=place.size, timeout=wait)
    yield
    # After an error the process ends as it is: putting the group away could wait for ranks that are gone.
    dist.destroy_process_group()


def _choose_interface(host: str) -> None:
    # Left alone, gloo listens where the host's own name points to, which is often the loopback interface.
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    with contextlib.suppress(OSError):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
        name = next((name for _, name in socket.if_nameindex() if _address(name) == address), None)
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _address(interface: str) -> str | None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface[:15].encode())
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24])  # SIOCGIFADDR
    return None
