"""Checkpoints broken at random: each is refused or proved harmless, and none crashes, hangs or takes much memory."""

import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import FLASH, FP4, Header, header_of, put, raw, stage_for, tensors_of

from builder.checkpoint.reading import load
from builder.components.base.spec import DTYPE_BYTES, Origin, walk
from builder.components.stage.module import Stage
from builder.errors import CheckpointError

INDEX = "model.safetensors.index.json"

KINDS: dict[str, Callable[[random.Random, Path], bool]] = {}
"""Each breaks a folder; True if weights may differ afterwards and all else must be as before."""


def fault(function: Callable[[random.Random, Path], bool]) -> Callable[[random.Random, Path], bool]:
    KINDS[function.__name__] = function
    return function


def some_file(draw: random.Random, folder: Path) -> Path:
    return draw.choice(sorted(folder.glob("*.safetensors")))


@fault
def truncation(draw: random.Random, folder: Path) -> bool:
    file = some_file(draw, folder)
    os.truncate(file, draw.randrange(file.stat().st_size))
    return False


@fault
def header_bits(draw: random.Random, folder: Path) -> bool:
    file = some_file(draw, folder)
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(8 + length)] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return False


@fault
def header_length(draw: random.Random, folder: Path) -> bool:
    file = some_file(draw, folder)
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    wrong = draw.choice([0, 1, length - 1, length + 1, length * 2, draw.getrandbits(40), draw.getrandbits(64)])
    file.write_bytes(struct.pack("<Q", wrong) + data[8:])
    return False


@fault
def header_run(draw: random.Random, folder: Path) -> bool:
    file = some_file(draw, folder)
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    start, size = 8 + draw.randrange(length), draw.randint(1, 40)
    data[start : start + size] = draw.randbytes(size)
    file.write_bytes(data)
    return False


def changed_header(draw: random.Random, folder: Path, change: Callable[[Header, str], None]) -> None:
    file = some_file(draw, folder)
    header, data = header_of(file)
    change(header, draw.choice([name for name in header if name != "__metadata__"]))
    put(file, header, data)


@fault
def dtype(draw: random.Random, folder: Path) -> bool:
    def change(header: Header, name: str) -> None:
        others = sorted(set(DTYPE_BYTES) - {header[name]["dtype"]})
        equal = [word for word in others if DTYPE_BYTES[word] == DTYPE_BYTES[header[name]["dtype"]]]
        header[name]["dtype"] = draw.choice(equal if equal and draw.random() < 0.7 else others)

    changed_header(draw, folder, change)
    return False


@fault
def shape(draw: random.Random, folder: Path) -> bool:
    def change(header: Header, name: str) -> None:
        old = header[name]["shape"]
        one = draw.choice([[1, *old], old[::-1], [*old, 1], [draw.choice([0, -1, 1 << 40, 1 << 70])], [], old * 2])
        header[name]["shape"] = one if one != old else [*old, 2]

    changed_header(draw, folder, change)
    return False


@fault
def offsets(draw: random.Random, folder: Path) -> bool:
    def change(header: Header, name: str) -> None:
        start, stop = header[name]["data_offsets"]
        step = draw.choice([1, -1, 2, 64, -start, 1 << 40, 1 << 66])
        header[name]["data_offsets"] = draw.choice(
            [[start + step, stop + step], [start, stop + step], [stop + 1, start]]
        )

    changed_header(draw, folder, change)
    return False


@fault
def name(draw: random.Random, folder: Path) -> bool:
    def change(header: Header, old: str) -> None:
        at = draw.randrange(len(old))
        new = old[:at] + draw.choice("abw0123.#/\u00e9\n") + old[at + draw.randint(0, 1) :]
        header[new if new != old else f"{old}x"] = header.pop(old)

    changed_header(draw, folder, change)
    return False


@fault
def two_names(draw: random.Random, folder: Path) -> bool:
    def change(header: Header, one: str) -> None:
        alike = [
            other
            for other in header
            if other not in (one, "__metadata__")
            and header[other] | {"data_offsets": 0} != header[one] | {"data_offsets": 0}
        ]
        other = draw.choice(alike)
        header[one], header[other] = header[other], header[one]

    changed_header(draw, folder, change)
    return False


@fault
def left_out(draw: random.Random, folder: Path) -> bool:
    changed_header(draw, folder, lambda header, name: header.pop(name))
    return False


@fault
def weight_bits(draw: random.Random, folder: Path) -> bool:
    file = some_file(draw, folder)
    header, data = header_of(file)
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    put(file, header, bytes(changed))
    return True


@fault
def index(draw: random.Random, folder: Path) -> bool:
    file = folder / INDEX
    names = list(tensors_of(folder)) if not file.exists() else list(json.loads(file.read_text())["weight_map"])
    listed = json.loads(file.read_text())["weight_map"] if file.exists() else dict.fromkeys(names, "model.safetensors")
    wrong: list[Any] = [
        "../x.safetensors",
        "/etc/hostname",
        "..",
        "",
        "a/b.safetensors",
        "nowhere.safetensors",
        None,
        7,
        {},
    ]
    chosen = draw.choice(names)
    match draw.randrange(4):
        case 0 | 1:
            listed[chosen] = draw.choice(wrong)
        case 2:
            del listed[chosen]
        case _:
            listed[f"{chosen}{draw.choice(['x', '.', '/', '..'])}"] = listed[chosen]
    file.write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return False


@fault
def index_bits(draw: random.Random, folder: Path) -> bool:
    file = folder / INDEX
    if not file.exists():
        return index(draw, folder)
    data = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return False


def held_bytes(stage: Stage) -> dict[str, torch.Tensor]:
    held = dict(stage.named_parameters()) | dict(stage.named_buffers())
    return {one.path: raw(held[one.path]) for one in walk(stage.spec) if one.tensor.origin is Origin.CHECKPOINT}


def broken_copy(source: Path, folder: Path) -> None:
    folder.mkdir()
    for file in source.iterdir():
        if not file.name.startswith("expected"):
            (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("source", [FLASH, FP4], ids=lambda folder: folder.name)
def test_random_faults_are_refused_or_harmless(source: Path, tmp_path: Path) -> None:
    draw = random.Random(20_260_424)
    whole = stage_for(source, "spec=mtp")
    load(whole, source)
    expected, stage = held_bytes(whole), stage_for(source, "spec=mtp")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: dict[bool, int] = {True: 0, False: 0}
    for number in range(250):
        folder = tmp_path / str(number)
        broken_copy(source, folder)
        kind = draw.choice(sorted(KINDS))
        weights_differ = KINDS[kind](draw, folder)
        start = time.monotonic()
        try:
            load(stage, folder)
        except CheckpointError:
            outcomes[False] += 1
            assert all(tensor.is_meta for tensor in stage.parameters()), (number, kind)
        else:
            outcomes[True] += 1
            different = [path for path, value in held_bytes(stage).items() if not torch.equal(value, expected[path])]
            assert len(different) <= weights_differ, (number, kind, different)
            stage = stage_for(source, "spec=mtp")
        assert time.monotonic() - start < 10, (number, kind)
        for file in folder.iterdir():
            file.unlink()
    assert outcomes[False] > 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
