"""``convert``: a checkpoint in another layout or format, streamed, resumable, the source never touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.checkpoint.config_writing import official_config, transformers_config
from builder.checkpoint.folder import INDEX, open_folder
from builder.checkpoint.header import refuse
from builder.checkpoint.mapped import Maps
from builder.checkpoint.names import LAYOUTS, Layout, fused_experts
from builder.checkpoint.progress import Progress
from builder.checkpoint.reading import Plan, plan_load
from builder.checkpoint.sources import QUANTIZED, Job, Source
from builder.checkpoint.writing import (
    Output,
    is_written,
    partial_of,
    shards_of,
    write_index,
    write_json,
    write_shard,
)
from builder.components.stage.module import Stage
from builder.errors import CheckpointError, ConfigError, Problem
from builder.schema.json_file import read_json_object
from builder.schema.model import ModelConfig

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Copied beside the weights where the source has them."""

STATE = ".builder-convert.json"
"""In the target: what it is made from, so that a later run knows whether it may go on."""


REPORTS = ("config.yaml", "convert.json")
"""What the command line may put into ``out`` beside the files."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion did. reused: files that an earlier run had finished; left_out: names that nothing reads."""

    tensors: int
    bytes_written: int
    files: tuple[str, ...]
    reused: tuple[str, ...]
    left_out: tuple[str, ...]


def convert(
    stage: Stage, model: ModelConfig, source: str | Path, target: str | Path, *, to: str, weights: str = "native"
) -> ConvertReport:
    """Write what ``stage`` declares (a whole model, built on meta for these weights) to ``target``.

    to: official, transformers or transformers_fused. Raises CheckpointError, or ConfigError for what cannot be had.
    """
    layout = next(one for one in LAYOUTS if one.name == to)
    read_from, write_to = Path(source), Path(target)
    plan = plan_load(stage, read_from)
    _refuse_quantized(plan, layout)
    _refuse_target(read_from, write_to)
    shards = shards_of(list(_outputs(plan, layout)))
    try:
        _claim(read_from, write_to, {"to": to, "weights": weights}, tuple(shards))
        reused = _write_all(write_to, shards)
        _write_config(read_from, write_to, model=model, layout=layout, weights=weights, plan=plan)
        _copy_companions(read_from, write_to)
    except OSError as error:
        refuse(write_to, "", "a folder that can be written", error.strerror or type(error).__name__)
    return _report(plan, shards, reused, read_from)


def _report(plan: Plan, shards: dict[str, list[Output]], reused: tuple[str, ...], source: Path) -> ConvertReport:
    sizes = [output.nbytes for group in shards.values() for output in group]
    files = (*shards, *((INDEX,) if len(shards) > 1 else ()))
    return ConvertReport(len(sizes), sum(sizes), files, reused, tuple(_left_out(plan, source)))


def _write_config(source: Path, target: Path, *, model: ModelConfig, layout: Layout, weights: str, plan: Plan) -> None:
    """The config.json that goes with the files; the source's own where that says the same."""
    blocks = {job.declared.name.split(".")[1] for job in plan.jobs if job.declared.name.startswith("mtp.")}
    raw = read_json_object(source / "config.json", "checkpoint")
    form = official_config if layout.official else transformers_config
    written = form(model, raw, weights, drafter_blocks=len(blocks))
    if written == raw:
        _copy(source, target, "config.json")
    else:
        write_json(target / "config.json", written)


def _write_all(folder: Path, shards: dict[str, list[Output]]) -> tuple[str, ...]:
    """Write what is not there yet; the names of what was."""
    reused = tuple(name for name, group in shards.items() if is_written(folder / name, group))
    maps = Maps()
    todo = {name: group for name, group in shards.items() if name not in reused}
    with Progress(sum(output.nbytes for group in todo.values() for output in group), "converting") as progress:
        for name, group in todo.items():
            for size in write_shard(maps, folder / name, group):
                progress.advance(size)
    write_index(folder, shards)
    return reused


def _outputs(plan: Plan, layout: Layout) -> Iterator[Output]:
    jobs = {job.declared.path: job for job in plan.jobs}
    for job in plan.jobs:
        tensor, name = job.declared.tensor, job.declared.name
        if not tensor.stacked:
            yield Output(layout.spelled(name), tensor.dtype, tensor.shape, job.sources)
        elif layout.fused and name.startswith("layers."):
            yield from _fused(job, jobs)
        else:
            for index, official in enumerate(job.declared.official_names()):
                pieces = (_expert(job, index),)
                yield Output(layout.spelled(official), tensor.dtype, tensor.shape[1:], pieces)


def _fused(job: Job, jobs: dict[str, Job]) -> Iterator[Output]:
    """The tensor that ends in w2, or the one that starts with w1 and holds w3 as well."""
    tensor = job.declared.tensor
    head, matrix, _ = job.declared.name.rsplit(".", 2)
    name, part, parts = fused_experts(head.removesuffix(".ffn.experts"), matrix)
    if part > 0:
        return
    members = [job]
    if parts == 2:
        members.append(jobs[f"{job.declared.path.removesuffix('w1.weight')}w3.weight"])
    experts, rows, columns = tensor.shape
    pieces = tuple(_expert(member, index) for index in range(experts) for member in members)
    yield Output(name, tensor.dtype, (experts, rows * parts, columns), pieces)


def _expert(job: Job, index: int) -> Source:
    first = job.sources[0]
    if first.index is not None:
        return job.sources[index]
    return replace(first, share=((index, index + 1), *first.share[1:]))


def _left_out(plan: Plan, source: Path) -> Iterator[str]:
    used = {piece.entry.name for job in plan.jobs for piece in job.sources}
    used |= {piece.scale.name for job in plan.jobs for piece in job.sources if piece.scale is not None}
    yield from (name for name in open_folder(source).entries if name not in used)


def _refuse_quantized(plan: Plan, layout: Layout) -> None:
    if layout.official or not any(job.declared.tensor.dtype in QUANTIZED for job in plan.jobs):
        return
    reason = f"convert.to={layout.name} holds plain weights, and these are quantized"
    raise ConfigError([Problem("convert.weights", "native", reason, "use bfloat16 or float32")])


def _refuse_target(source: Path, target: Path) -> None:
    read_from, write_to = source.resolve(), target.resolve()
    if write_to == read_from or read_from in write_to.parents:
        refuse(
            target,
            "",
            "a folder outside of the source",
            f"the source {source}" if write_to == read_from else "one in it",
        )
    if target.exists() and not target.is_dir():
        refuse(target, "", "a folder", "a file")


def _claim(source: Path, target: Path, options: dict[str, str], shards: Sequence[str]) -> None:
    """Make the target ours: empty, or with the files of an earlier run of the same conversion. CheckpointError."""
    entries = open_folder(source).entries.values()
    sizes = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in {entry.file for entry in entries}}
    state: dict[str, object] = {"source": str(source.resolve()), **options, "files": dict(sorted(sizes.items()))}
    target.mkdir(parents=True, exist_ok=True)
    found = {file.name for file in target.iterdir()}
    if not found - {*REPORTS}:
        write_json(target / STATE, state)
        return
    written = {STATE, INDEX, "config.json", *COMPANIONS, *REPORTS, *shards}
    foreign = sorted(found - written - {partial_of(target / name).name for name in written})
    if foreign or STATE not in found:
        shown = ", ".join((foreign or sorted(found))[:3])
        refuse(target, "", "an empty folder, or one that this conversion began", f"{len(found)} files, such as {shown}")
    if _read_state(target / STATE) != state:
        refuse(target / STATE, "", "the same conversion of the same files", "another one", "give an empty folder")


def _read_state(path: Path) -> dict[str, object]:
    try:
        return read_json_object(path, "out")
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error.problems[0].reason}") from None


def _copy_companions(source: Path, target: Path) -> None:
    for name in COMPANIONS:
        if (source / name).is_file():
            _copy(source, target, name)


def _copy(source: Path, target: Path, name: str) -> None:
    partial = partial_of(target / name)
    shutil.copyfile(source / name, partial)
    partial.replace(target / name)


def blocks_in(source: str | Path) -> bool:
    """Whether a folder holds drafter blocks, ``mtp.*``."""
    return any(name.startswith("mtp.") for name in open_folder(source).entries)
