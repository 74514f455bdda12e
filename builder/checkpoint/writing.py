"""Writing safetensors: a shard is streamed tensor by tensor into a temporary file, and appears when it is complete."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from builder.checkpoint.folder import INDEX, SINGLE
from builder.checkpoint.header import read_header
from builder.checkpoint.mapped import Maps
from builder.checkpoint.sources import Source
from builder.checkpoint.values import values_of
from builder.components.base.module import TORCH_DTYPES
from builder.components.base.spec import DTYPE_BYTES
from builder.errors import CheckpointError

SHARD_BYTES = 5 * 10**9
"""A shard holds at most this much, or a single larger tensor."""

_ORDER = ("U8", "I8", "F8_E4M3", "F8_E8M0", "F16", "BF16", "I32", "F32", "F64", "I64")
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to write: its values are those of ``pieces``, one after the other."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Source, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def shards_of(outputs: Sequence[Output], most: int = SHARD_BYTES) -> dict[str, list[Output]]:
    """Outputs by file name, in their order: one file, or as many as needed."""
    groups: list[list[Output]] = [[]]
    size = 0
    for output in outputs:
        if groups[-1] and size + output.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(output)
        size += output.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def write_shard(maps: Maps, path: Path, outputs: Sequence[Output]) -> Iterator[int]:
    """Write a file; yields the bytes of each tensor once written. It stands at ``path`` only when all of it does."""
    ordered = sorted(outputs, key=_place)
    partial = partial_of(path)
    with partial.open("wb") as stream:
        stream.write(_header(ordered))
        for output in ordered:
            for piece in output.pieces:
                _write(stream, maps, piece, TORCH_DTYPES[output.dtype])
            yield output.nbytes
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def partial_of(path: Path) -> Path:
    """Where a file stands while it is written."""
    return path.with_name(f".{path.name}.partial")


def is_written(path: Path, outputs: Sequence[Output]) -> bool:
    """Whether a file with exactly these tensors is there, from an earlier run."""
    if not path.exists():
        return False
    try:
        found = [(entry.name, entry.dtype, entry.shape) for entry in read_header(path)]
    except CheckpointError:
        return False
    return found == [(one.name, one.dtype, one.shape) for one in sorted(outputs, key=_place)]


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, whole or not at all."""
    partial = partial_of(path)
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def write_index(folder: Path, shards: dict[str, list[Output]]) -> None:
    """The weight index, where there are several shards."""
    if len(shards) > 1:
        listed = {output.name: name for name, group in shards.items() for output in group}
        total = sum(output.nbytes for group in shards.values() for output in group)
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(listed.items()))})


def _place(output: Output) -> tuple[int, str]:
    # As the safetensors library orders them: wide dtypes first, so that every tensor is aligned.
    return -_ORDER.index(output.dtype), output.name


def _header(outputs: Sequence[Output]) -> bytes:
    members: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for output in outputs:
        span = [position, position + output.nbytes]
        members[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": span}
        position = span[1]
    text = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write(stream: BinaryIO, maps: Maps, piece: Source, dtype: torch.dtype) -> None:
    values = values_of(maps, piece, dtype).contiguous().flatten()
    if values.numel():
        # Bytes where they lie: no copy, and no numpy.
        stream.write((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))
