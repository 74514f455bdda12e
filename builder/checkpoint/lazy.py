"""Weights that stay in their files until they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from builder.checkpoint.mapped import Maps
from builder.checkpoint.reading import attach, plan_load
from builder.checkpoint.values import fill_from
from builder.components.stage.module import Stage


class FileWeights(Mapping[str, Tensor]):
    """The checkpoint tensors of a stage on ``meta`` by path, read anew each time; files stay mapped, not copied.

    Raises CheckpointError when made, for files that do not match the declaration.
    """

    def __init__(self, stage: Stage, folder: str | Path, own_folder: str | Path | None = None) -> None:
        plan = plan_load(stage, folder, own_folder)
        self._plan, self._jobs = plan, {job.declared.path: job for job in plan.jobs}
        self._maps = Maps()
        self._like: dict[str, Tensor] = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
        self._paths = {id(tensor): path for path, tensor in self._like.items()}

    def __getitem__(self, path: str) -> Tensor:
        job = self._jobs[path]
        out = torch.empty(self._like[path].shape, dtype=self._like[path].dtype)
        for _ in fill_from(self._maps, job, out, self._plan.limit(job)):
            pass
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def of(self, part: nn.Module) -> PartWeights:
        """The same for the parameters of one part, by names inside it (a shared part has its first path)."""
        return PartWeights(self, {name: self._paths[id(tensor)] for name, tensor in part.named_parameters()})

    def attach_all_but(self, stage: Stage, left_out: set[str], device: torch.device) -> None:
        """Fill what is not in ``left_out``: what is small and always needed, and all that comes from no file."""
        kept = {path: self[path].to(device) for path in self._jobs if path not in left_out}
        attach(stage, kept, device, leave=left_out)


class PartWeights(Mapping[str, Tensor]):
    """Weights of one part. paths: where each stands in the stage."""

    def __init__(self, weights: FileWeights, paths: Mapping[str, str]) -> None:
        self._weights, self.paths = weights, paths

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self.paths[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)
