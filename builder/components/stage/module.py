"""A pipeline stage: one forward pass over what a rank holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from builder.components.base.module import TORCH_DTYPES, Component, Construction
from builder.components.base.step import Step
from builder.components.stage.spec import StageSpec


class Trunk(Component[StageSpec]):
    """Layers in a row, with what stands before and after them; parts carry the official names."""

    def __init__(self, spec: StageSpec, construction: Construction) -> None:
        super().__init__(spec, construction)
        self._enter = _ENTRIES[spec.reads]
        self._leave = _EXITS[spec.writes]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the residual stream."""
        return TORCH_DTYPES[self.spec.activation]

    def forward(self, step: Step, stream: Tensor | None = None) -> Tensor:
        """One step: the stage's stream [tokens, hc_mult, hidden], or on the last stage the logits [tokens, vocabulary].

        stream: what the stage before sent; None on the first.
        """
        return self._leave(self, self.run_layers(step, stream))

    def run_layers(self, step: Step, stream: Tensor | None = None) -> Tensor:
        """The stream after the stage's last layer: [tokens, hc_mult, hidden]."""
        flow = self._enter(self, step, stream)
        for index in range(self.spec.first, self.spec.last + 1):
            flow = self.get_submodule(f"layers.{index}")(flow, step)
        return flow

    def predict(self, stream: Tensor) -> Tensor:
        """The stream after the last layer -> logits: [tokens, hc_mult, hidden] -> [tokens, vocabulary]."""
        return self._leave(self, stream)


class Stage(Trunk):
    """What one rank holds.

    files: the same parts as the checkpoint stores them; share_of: the rank's share of a declared tensor.
    """

    def __init__(self, spec: StageSpec, construction: Construction, files: StageSpec) -> None:
        super().__init__(spec, construction)
        self.files = files
        self.share_of = construction.share_of


def _embed(stage: Trunk, step: Step, stream: Tensor | None) -> Tensor:
    # Every stream starts as a copy of the embedding: [tokens, hc_mult, hidden]
    del stream
    hidden = stage.get_submodule("embed")(step.ids).to(stage.dtype)
    return hidden.unsqueeze(1).expand(-1, stage.spec.streams, -1)


def _receive(stage: Trunk, step: Step, stream: Tensor | None) -> Tensor:
    del step
    if stream is None:
        raise ValueError(f"layers {stage.spec.first} to {stage.spec.last} need the stream of the stage before them")
    return stream


def _logits(stage: Trunk, stream: Tensor) -> Tensor:
    tensors = (cast("Tensor", getattr(stage, f"hc_head_{name}")) for name in ("fn", "base", "scale"))
    hidden = stage.get_submodule("hc_head")(stream, *tensors)
    return stage.get_submodule("head")(stage.get_submodule("norm")(hidden))


def _send(stage: Trunk, stream: Tensor) -> Tensor:
    del stage
    return stream


_ENTRIES: dict[str, Callable[[Trunk, Step, Tensor | None], Tensor]] = {"ids": _embed, "stream": _receive}
_EXITS: dict[str, Callable[[Trunk, Tensor], Tensor]] = {"logits": _logits, "stream": _send}
