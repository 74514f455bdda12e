"""A model that is ready to run: built, loaded, with a cache for its requests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from builder.assembly.build import build_rank
from builder.assembly.stages import Assembly, assemble
from builder.checkpoint.reading import load
from builder.components.stage.module import Stage
from builder.errors import ConfigError, Problem
from builder.kernels.devices import TORCH_DEVICES
from builder.runtime.cache import Cache
from builder.runtime.offload import offload
from builder.schema.config import BuildConfig


@dataclass(frozen=True)
class Model:
    """One rank's stage with its weights."""

    assembly: Assembly
    stage: Stage
    device: torch.device

    @property
    def config(self) -> BuildConfig:
        """The configuration it was built from."""
        return self.assembly.config

    def cache(self, slots: int, length: int) -> Cache:
        """A cache for ``slots`` requests of up to ``length`` tokens, by the plan's formula."""
        return Cache(self.stage, self.assembly.cache_format, slots, length, self.device)


def open_model(config: BuildConfig) -> Model:
    """Build and load the one rank of a configuration.

    Raises ConfigError without a checkpoint, or for more than one rank; CheckpointError for files that do not match.
    """
    if config.checkpoint is None:
        raise ConfigError([Problem("checkpoint", None, f"task={config.task} needs weights", "give checkpoint=DIR")])
    if config.parallel.world_size > 1:
        reason = f"task={config.task} runs in one process in this version"
        raise ConfigError([Problem("pp·dp·tp", config.parallel.world_size, reason, "leave pp, dp and tp at 1")])
    device = torch_device(config)
    assembly = assemble(config)
    stage = build_rank(assembly, assembly.place(0), torch.device("meta"))
    if config.hardware.offload == "none":
        load(stage, config.checkpoint, own_folder=config.spec.own_checkpoint, device=device)
    else:
        offload(stage, config, device)
    return Model(assembly, stage.eval(), device)


def torch_device(config: BuildConfig) -> torch.device:
    """The torch device of a vendor. Raises ConfigError where torch finds none."""
    vendor = config.hardware.vendor
    kind = TORCH_DEVICES[vendor]
    available = {"cuda": torch.cuda.is_available, "xpu": torch.xpu.is_available, "cpu": lambda: True}[kind]()
    if not available:
        reason = f"task={config.task} computes, and torch finds no such device here"
        raise ConfigError([Problem("hardware", vendor, reason, "use hardware=cpu")])
    return torch.device(kind)
