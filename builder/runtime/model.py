"""A model that is ready to run: built, loaded, with a cache for its requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from builder.assembly.build import build_rank
from builder.assembly.stages import Assembly, assemble
from builder.checkpoint.reading import load
from builder.components.base.step import Step
from builder.components.stage.module import Stage
from builder.errors import ConfigError, Problem
from builder.kernels.devices import TORCH_DEVICES
from builder.runtime.cache import Cache
from builder.runtime.offload import offload
from builder.runtime.peers import Alone, Peers
from builder.schema.config import BuildConfig


@dataclass(frozen=True)
class Model:
    """One rank's stage with its weights, and the ranks around it."""

    assembly: Assembly
    stage: Stage
    device: torch.device
    peers: Peers = field(default_factory=Alone)

    @property
    def config(self) -> BuildConfig:
        """The configuration it was built from."""
        return self.assembly.config

    def cache(self, slots: int, length: int) -> Cache:
        """A cache for ``slots`` requests of up to ``length`` tokens, by the plan's formula."""
        return Cache(self.stage, self.assembly.cache_format, slots, length, self.device)

    def run(self, step: Step) -> Tensor | None:
        """This stage's part of a pass. The stream before hc_head, [tokens, hc_mult, hidden]; None before the last."""
        received = self.peers.receive(step.ids.shape[0])
        return self.peers.send(self.stage.run_layers(step, received))


def open_model(config: BuildConfig) -> Model:
    """Build and load the one rank of a configuration.

    Raises ConfigError without a checkpoint; CheckpointError for files that do not match.
    """
    return load_model(assemble(config), torch_device(config), Alone())


def load_model(assembly: Assembly, device: torch.device, peers: Peers, rank: int = 0) -> Model:
    """Build and load one rank among its peers. Raises as ``open_model``."""
    config = assembly.config
    if config.checkpoint is None:
        raise ConfigError([Problem("checkpoint", None, f"task={config.task} needs weights", "give checkpoint=DIR")])
    stage = build_rank(assembly, assembly.place(rank), torch.device("meta"))
    peers.join(stage)
    if config.hardware.offload == "none":
        own = config.spec.own_checkpoint
        load(stage, config.checkpoint, own_folder=own, device=device, progress=peers.progress)
    else:
        offload(stage, config, device)
    return Model(assembly, stage.eval(), device, peers)


def torch_device(config: BuildConfig, local_rank: int = 0, local_size: int = 1) -> torch.device:
    """The torch device of a vendor for one of a machine's ranks. Raises ConfigError where torch finds none for it."""
    vendor = config.hardware.vendor
    kind = TORCH_DEVICES[vendor]
    if kind == "cpu":
        return torch.device(kind)
    module = torch.get_device_module(kind)
    found = module.device_count() if module.is_available() else 0
    if not found:
        reason = f"task={config.task} computes, and torch finds no such device here"
        raise ConfigError([Problem("hardware", vendor, reason, "use hardware=cpu")])
    if local_size > found:
        reason = f"{local_size} ranks on this machine, and devices that torch finds here: {found}"
        works = f"each rank needs one of its own: start at most {found} a machine, or use hardware=cpu"
        raise ConfigError([Problem("hardware", vendor, reason, works)])
    return torch.device(kind, local_rank) if local_size > 1 else torch.device(kind)
