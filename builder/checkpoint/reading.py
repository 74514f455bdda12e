"""``load``: a stage gets its weights, each rank its own bytes, or a CheckpointError and nothing at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from builder.checkpoint.folder import Folder, open_folder, several
from builder.checkpoint.header import fault, refuse
from builder.checkpoint.mapped import Maps
from builder.checkpoint.names import Layout, recognise, repeated
from builder.checkpoint.progress import Progress
from builder.checkpoint.sources import FLOATS, QUANTIZED, Job, Matcher
from builder.checkpoint.values import fill_from
from builder.components.base.module import Component
from builder.components.base.spec import ComponentSpec, Declared, Origin, parts, walk
from builder.components.hash_router.spec import HashRouterSpec
from builder.components.stage.module import Stage
from builder.components.stage.spec import StageSpec
from builder.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did. loaded: official names of what the rank holds now; bytes_read: of tensor data, from the files.

    missing, unexpected: always empty, since either is a CheckpointError.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    bytes_read: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a stage needs and where it stands, checked against the headers; nothing is read yet."""

    jobs: tuple[Job, ...]
    tables: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes that the jobs take from the files."""
        return sum(source.nbytes for job in self.jobs for source in job.sources)

    def limit(self, job: Job) -> int | None:
        """What the numbers of a table must stay below, None where values are weights."""
        return self.tables.get(job.declared.path)


def load(
    stage: Stage,
    folder: str | Path,
    *,
    own_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int], Progress] = Progress,
) -> LoadReport:
    """Fill a stage from a checkpoint folder, whose layout is recognised. Raises CheckpointError and leaves no half.

    own_folder: the files of a draft model or EAGLE head of its own. device: where a stage built on ``meta`` goes.
    progress: makes what is told how many of so many bytes are there.
    """
    plan = plan_load(stage, folder, own_folder)
    filled: dict[str, torch.Tensor] = {}
    try:
        with torch.no_grad(), progress(plan.nbytes) as told:
            filled.update(read(stage, plan, torch.device(device), told))
    except BaseException:
        filled.clear()
        _unload(stage)
        raise
    attach(stage, filled, torch.device(device))
    return LoadReport(tuple(_names(stage, plan)), (), (), plan.nbytes)


def plan_load(stage: Stage, folder: str | Path, own_folder: str | Path | None = None) -> Plan:
    """Hold a stage's declaration against the headers of its files. Raises CheckpointError with every difference."""
    declared = [one for one in walk(stage.spec) if one.tensor.origin is Origin.CHECKPOINT]
    own = [one for one in declared if one.own_files]
    if own and own_folder is None:
        raise CheckpointError(f"{own[0].path} comes from files of the drafter's own; give spec.checkpoint=DIR")
    jobs = _match(stage, open_folder(folder), [one for one in declared if not one.own_files])
    if own and own_folder is not None:
        jobs += _match(stage, open_folder(own_folder), own)
    order = {one.path: index for index, one in enumerate(declared)}
    jobs.sort(key=lambda job: order[job.declared.path])
    return Plan(tuple(jobs), dict(_tables(stage.spec)))


def read(stage: Stage, plan: Plan, device: torch.device, progress: Progress) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a plan one by one, by path; where the stage holds memory, that memory is filled in place."""
    maps = Maps()
    held = dict(stage.named_parameters()) | dict(stage.named_buffers())
    for job in plan.jobs:
        path = job.declared.path
        out = held[path].detach()
        if out.is_meta:
            out = torch.empty(out.shape, dtype=out.dtype, device=device)
        for size in fill_from(maps, job, out, plan.limit(job)):
            progress.advance(size)
        yield path, out


def _match(stage: Stage, folder: Folder, declared: list[Declared]) -> list[Job]:
    layout = recognise(folder.entries).with_names(name for one in walk(stage.files) for name in one.official_names())
    converts = stage.files is not stage.spec
    stored = {one.path: one for one in walk(stage.files)}
    _refuse_layout(folder, layout, declared)
    matcher = Matcher(folder, layout, stored, stage.share_of, converts, _usual_dtype(folder))
    jobs = [matcher.job(one) for one in declared]
    lines = [*matcher.faults, *_unexpected(folder, layout, matcher.used, _Scope.of(stage.spec, declared))]
    if lines:
        raise several(lines)
    return jobs


def _usual_dtype(folder: Folder) -> str:
    counts = Counter(entry.dtype for entry in folder.entries.values() if entry.dtype in FLOATS and len(entry.shape) > 1)
    return counts.most_common(1)[0][0] if counts else "F32"


def _refuse_layout(folder: Folder, layout: Layout, declared: list[Declared]) -> None:
    """What a layout can never hold, said once instead of tensor by tensor."""
    if layout.official:
        return
    spelled = f"the {layout.name.replace('_', ' ')} layout"
    quantized = next((one for one in declared if one.tensor.dtype in QUANTIZED), None)
    if quantized is not None:
        found = f"{spelled}, whose weights are plain"
        works = "runtime.weights=bfloat16 or float32 takes them"
        refuse(folder.path, quantized.name, f"{quantized.tensor.dtype} as config.json says", found, works)
    drafter = next((one.name for one in declared if one.name.startswith("mtp.")), None)
    if drafter is not None and not any(name.startswith("mtp.") for name in folder.entries):
        found = f"{spelled}, which holds none, whatever num_nextn_predict_layers says"
        refuse(folder.path, drafter, "an MTP block", found, "use spec=none, or official files")


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a stage answers for: in it, a name that it does not declare is unexpected; the rest is other ranks'."""

    whole: frozenset[str]
    end: int | None

    @classmethod
    def of(cls, spec: StageSpec, declared: list[Declared]) -> _Scope:
        last = spec.last if spec.writes == "logits" else None
        if any(one.own_files for one in declared):
            layers = [int(one.name.split(".")[1]) for one in declared if one.name.startswith("layers.")]
            last = max(layers, default=None)
        return cls(frozenset(_part(one.name) for one in declared), last)

    def holds(self, name: str) -> bool:
        part = _part(name)
        if part.startswith("layers.") and self.end is not None and int(part.split(".")[1]) > self.end:
            return True
        return part in self.whole


def _part(name: str) -> str:
    """layers.3, mtp, or a name of the top level."""
    words = name.split(".")
    return ".".join(words[:2]) if words[0] == "layers" else "mtp" if words[0] == "mtp" else name


def _unexpected(folder: Folder, layout: Layout, used: set[str], scope: _Scope) -> Iterator[str]:
    for name, entry in folder.entries.items():
        known = layout.find(name)
        if name in used or (known and (repeated(known) or not scope.holds(layout.official_name(known)))):
            continue
        yield fault(entry.file, name, "no tensor of this name", entry.words)


def _tables(spec: ComponentSpec) -> Iterator[tuple[str, int]]:
    for path, part in parts(spec):
        if isinstance(part, HashRouterSpec):
            yield f"{path}.tid2eid", part.experts


def _names(stage: Stage, plan: Plan) -> Iterator[str]:
    for job in plan.jobs:
        names = list(job.declared.official_names())
        start, stop = stage.share_of(job.declared.tensor)[0] if job.declared.tensor.stacked else (0, 1)
        yield from names[start:stop]


def attach(
    stage: Stage, filled: dict[str, torch.Tensor], device: torch.device, leave: Collection[str] = frozenset()
) -> None:
    """Put filled memory in the place of what stood on meta, and make what comes from no file; ``leave`` stays there."""
    fresh = False
    for path, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
        if tensor.is_meta and path not in leave:
            fresh = True
            memory = filled.get(path)
            _replace(stage, path, torch.zeros_like(tensor, device=device) if memory is None else memory)
    if fresh:
        for module in stage.modules():
            if isinstance(module, Component):
                module.fill()


def _unload(stage: Stage) -> None:
    """Nothing half loaded stays: every tensor of the stage is on meta again."""
    for path, tensor in [*stage.named_parameters(), *stage.named_buffers()]:
        if not tensor.is_meta:
            _replace(stage, path, torch.empty_like(tensor, device="meta"))


def _replace(stage: nn.Module, path: str, memory: torch.Tensor) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = stage.get_submodule(owner_path)
    old = getattr(owner, name)
    if isinstance(old, nn.Parameter):
        setattr(owner, name, nn.Parameter(memory, requires_grad=old.requires_grad))
    else:
        setattr(owner, name, memory)
