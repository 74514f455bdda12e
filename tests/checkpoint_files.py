"""Small checkpoints for tests: the two among the data, copies of them, and what the safetensors library reads."""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import builder
from builder.components.stage.module import Stage
from builder.schema.config import BuildConfig

Header = dict[str, Any]
DATA = Path(__file__).resolve().parent / "data" / "checkpoints"
FLASH, FP4 = DATA / "tiny-flash", DATA / "tiny-fp4"


def header_of(file: Path) -> tuple[Header, bytes]:
    """The header of a safetensors file as JSON, and the bytes after it."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put(file: Path, header: Header | bytes, data: bytes) -> None:
    """Write a safetensors file, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder, by the safetensors library."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                found[name] = opened.get_tensor(name)
    return found


def copy_of(source: Path, target: Path) -> Path:
    """A copy without the expected outputs."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("expected*"))
    return target


def write(folder: Path, config: Mapping[str, object], tensors: Mapping[str, torch.Tensor]) -> Path:
    """A checkpoint in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def config_of(folder: Path) -> dict[str, object]:
    """Its config.json."""
    return json.loads((folder / "config.json").read_text())


def stage_for(folder: Path, *words: str, rank: int = 0, device: str = "meta") -> Stage:
    """The stage of a rank for a folder's model."""
    return builder.build(composed(folder, *words), rank, device)


def composed(folder: Path, *words: str) -> BuildConfig:
    """The configuration of a folder's model."""
    return builder.compose(["hardware=cpu", f"checkpoint={folder}", *words])


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, to compare where NaN and float8 have no equality."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)
