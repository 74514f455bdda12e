"""The header of a safetensors file, read strictly: what it says is checked before a byte of it is believed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from builder.components.base.spec import DTYPE_BYTES
from builder.errors import CheckpointError

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file: ``start`` is where its first byte stands in the file, ``dtype`` as the header spells it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def words(self) -> str:
        """Dtype and shape for a message."""
        return described(self.dtype, self.shape)


def described(dtype: str, shape: Iterable[int]) -> str:
    """Dtype and shape for a message: ``F32 [24, 256]``."""
    return f"{dtype} {list(shape)}"


def refuse(file: Path, tensor: str, expected: str, found: str, works: str = "") -> NoReturn:
    """Raise the CheckpointError that names the file, the tensor (empty: none), expected and found."""
    raise CheckpointError(fault(file, tensor, expected, found, works))


def fault(file: Path, tensor: str, expected: str, found: str, works: str = "") -> str:
    """One line of a CheckpointError."""
    name = tensor[:200] if tensor.isprintable() else ascii(tensor[:200])
    where = f"{file}: {name}" if tensor else str(file)
    return f"{where}: expected {expected}, found {found}{f'; {works}' if works else ''}"


def read_header(file: Path) -> list[Entry]:
    """The tensors of a file in the order of their bytes. Raises CheckpointError for anything that does not add up."""
    try:
        text, data_start, size = _read(file)
    except OSError as error:
        refuse(file, "", "a file that can be read", error.strerror or type(error).__name__)
    entries = sorted(_entries(file, _parsed(file, text), data_start), key=lambda one: (one[0].start, one[1]))
    position = data_start
    for entry, stop in entries:
        if entry.start != position:
            refuse(file, entry.name, f"data at byte {position - data_start}", f"byte {entry.start - data_start}")
        position = stop
    if position != size:
        expected = f"{size - data_start} bytes of data by the file's size"
        refuse(file, "", expected, f"{position - data_start} bytes by its header; the file is cut or damaged")
    return [entry for entry, _ in entries]


def _read(file: Path) -> tuple[bytes, int, int]:
    """The header's text, the byte after it, and the file's size."""
    if not file.exists():
        refuse(file, "", "a file", "a link to nothing" if file.is_symlink() else "no such file")
    if not file.is_file():
        refuse(file, "", "a regular file", "something else")
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        if size < _LENGTH_BYTES:
            refuse(file, "", f"at least {_LENGTH_BYTES} bytes", f"{size} bytes")
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        most = min(size - _LENGTH_BYTES, MOST_HEADER_BYTES)
        if length > most:
            refuse(file, "", f"a header of at most {most} bytes", f"{length} bytes by its first {_LENGTH_BYTES} bytes")
        return stream.read(length), _LENGTH_BYTES + length, size


def _parsed(file: Path, text: bytes) -> dict[str, object]:
    try:
        value: object = json.loads(text.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        refuse(file, "", "a header of well-formed JSON", reason)
    if not isinstance(value, dict):
        refuse(file, "", "a header that is a JSON object", type(value).__name__)
    members = cast("dict[str, object]", value)
    metadata = members.pop(_METADATA, {})
    words = list(cast("dict[str, object]", metadata).values()) if isinstance(metadata, dict) else [None]
    if not all(isinstance(word, str) for word in words):
        refuse(file, _METADATA, "an object of strings", str(words)[:80])
    return members


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {twice[:80]} is there twice")
    return members


def _entries(file: Path, members: dict[str, object], data_start: int) -> Iterable[tuple[Entry, int]]:
    for name, value in members.items():
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        if fields.keys() != {"dtype", "shape", "data_offsets"}:
            refuse(file, name, "dtype, shape and data_offsets", ", ".join(fields)[:80] or "none of them")
        dtype, shape = fields["dtype"], _whole_numbers(fields["shape"])
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            refuse(file, name, f"a dtype of {', '.join(DTYPE_BYTES)}", str(dtype)[:40])
        if shape is None:
            refuse(file, name, "a shape of whole numbers", str(fields["shape"])[:80])
        start, stop = _span(file, name, fields["data_offsets"])
        entry = Entry(name, dtype, shape, file, data_start + start)
        if stop - start != entry.nbytes:
            expected = f"{entry.nbytes} bytes for {entry.words}"
            refuse(file, name, expected, f"{stop - start} bytes by its data_offsets")
        yield entry, data_start + stop


def _span(file: Path, name: str, offsets: object) -> tuple[int, int]:
    span = _whole_numbers(offsets)
    if span is None or len(span) != 2:
        refuse(file, name, "two data_offsets", str(offsets)[:80])
    return span[0], span[1]


def _whole_numbers(value: object) -> tuple[int, ...] | None:
    """A short list of numbers of at least 0 that fit into 63 bits; None for anything else."""
    if not isinstance(value, list):
        return None
    numbers: list[Any] = cast("list[Any]", value)
    if len(numbers) > _MOST_DIMENSIONS or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        return None
    return tuple(numbers)
