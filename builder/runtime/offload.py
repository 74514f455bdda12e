"""Stages larger than memory: weights are fetched part by part when their part computes (accelerate's hooks)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from builder.checkpoint.lazy import FileWeights
from builder.components.stage.module import Stage
from builder.errors import ConfigError, Problem
from builder.schema.config import BuildConfig


def offload(stage: Stage, config: BuildConfig, device: torch.device) -> None:
    """Give a stage on ``meta`` its weights so that only one part at a time is on the device.

    hardware.offload=disk reads them from the checkpoint's own files each time, nothing is written; cpu keeps them in
    the CPU's memory. Raises ConfigError for cpu on the CPU, CheckpointError for files that do not match.
    """
    mode = config.hardware.offload
    if mode == "cpu" and device.type == "cpu":
        reason = "on the CPU the weights are in its memory as it is"
        raise ConfigError([Problem("hardware.offload", mode, reason, "use hardware.offload=disk, or none")])
    weights = FileWeights(stage, config.checkpoint or "", config.spec.own_checkpoint)
    parts = [(part, weights.of(part)) for part in _parts(stage)]
    hooked = {path for _, source in parts for path in source.paths.values()}
    weights.attach_all_but(stage, hooked, device)
    for part, source in parts:
        _hook(part, dict(source) if mode == "cpu" else source, device)


def _parts(stage: nn.Module) -> Iterator[nn.Module]:
    """What is fetched at a time: a layer, the embedding, the head, the MTP block; the same of a draft model."""
    for name, part in stage.named_children():
        if name == "layers":
            yield from part.children()
        elif name in ("embed", "head", "mtp"):
            yield part
        elif name == "draft":
            yield from _parts(part)


def _hook(part: nn.Module, source: Mapping[str, Tensor], device: torch.device) -> None:
    # Imported here: accelerate takes half a second that a run without offloading need not spend.
    hooks = cast("Any", importlib.import_module("accelerate.hooks"))
    hook = hooks.AlignDevicesHook(execution_device=device, offload=True, weights_map=source, place_submodules=True)
    hooks.add_hook_to_module(part, hook)
