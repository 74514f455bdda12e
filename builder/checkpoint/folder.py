"""A checkpoint folder: which tensors it holds, in which files. Only safetensors is read; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from builder.checkpoint.header import Entry, fault, read_header, refuse
from builder.errors import CheckpointError, ConfigError
from builder.schema.json_file import read_json_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"

_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
_WORKS = "give the folder that holds the model's safetensors files"


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened checkpoint: every tensor by name. Its headers are checked, its values not read."""

    path: Path
    entries: Mapping[str, Entry]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries.values())


def open_folder(path: str | Path) -> Folder:
    """Read the index and every header. Raises CheckpointError naming the file, the tensor, expected and found."""
    folder = Path(path)
    try:
        if not folder.is_dir():
            refuse(folder, "", "a folder", "a file" if folder.exists() else "nothing there", _WORKS)
        if (folder / INDEX).exists():
            return Folder(folder, _indexed(folder))
        file = _only_file(folder)
    except OSError as error:
        refuse(folder, "", "a folder that can be read", error.strerror or type(error).__name__)
    except ValueError as error:
        refuse(folder, "", "a folder", str(error))
    return Folder(folder, {entry.name: entry for entry in read_header(file)})


def _only_file(folder: Path) -> Path:
    names = sorted(file.name for file in folder.iterdir())
    found = [name for name in names if name.endswith(SUFFIX)]
    if SINGLE in found or len(found) == 1:
        return folder / (SINGLE if SINGLE in found else found[0])
    if found:
        refuse(folder, "", f"{INDEX} or {SINGLE}", f"{len(found)} files without an index: {', '.join(found[:3])}")
    pickles = [name for name in names if Path(name).suffix in _PICKLES]
    if pickles:
        works = "only safetensors is read, and nothing is unpickled"
        refuse(folder, "", SINGLE, f"{', '.join(pickles[:3])}", works)
    return refuse(folder, "", f"{INDEX} or {SINGLE}", "neither", _WORKS)


def _indexed(folder: Path) -> dict[str, Entry]:
    index = folder / INDEX
    listed = _weight_map(index)
    entries: dict[str, Entry] = {}
    for shard in sorted(set(listed.values())):
        for entry in read_header(folder / shard):
            if entry.name in entries:
                refuse(entry.file, entry.name, "each tensor once", f"it in {entries[entry.name].file.name} too")
            entries[entry.name] = entry
    lines = list(_differences(index, listed, entries))
    if lines:
        raise several(lines)
    return entries


def _differences(index: Path, listed: Mapping[str, str], entries: Mapping[str, Entry]) -> Iterator[str]:
    for name, shard in listed.items():
        if name not in entries:
            yield fault(index.parent / shard, name, f"it here by {INDEX}", "no such tensor")
        elif entries[name].file.name != shard:
            yield fault(index, name, f"{entries[name].file.name}, where it is", shard)
    for name, entry in entries.items():
        if name not in listed:
            yield fault(entry.file, name, f"it in {INDEX}", "no such name there")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        listed: Any = read_json_object(index, "index").get("weight_map")
    except ConfigError as error:
        refuse(index, "", "a weight index", error.problems[0].reason)
    if not isinstance(listed, dict) or not listed:
        refuse(index, "weight_map", "an object of tensor names and file names", str(cast("object", listed))[:80])
    for name, shard in cast("dict[str, object]", listed).items():
        if not isinstance(shard, str) or not _is_plain(shard):
            refuse(index, name, f"the name of a {SUFFIX} file beside the index", repr(shard)[:120])
    return cast("dict[str, str]", listed)


def _is_plain(name: str) -> bool:
    return (
        name.endswith(SUFFIX)
        and name != SUFFIX
        and name.isprintable()
        and not any(w in name for w in ("/", "\\", ".."))
    )


def several(lines: list[str], most: int = 8) -> CheckpointError:
    """One error of many lines; of a long list, the first."""
    rest = [f"… and {len(lines) - most} more"] if len(lines) > most else []
    return CheckpointError("\n".join([*lines[:most], *rest]))
