"""Broken checkpoints: refused with the file, the tensor, expected and found; nothing half loaded stays."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import FLASH, FP4, Header, copy_of, header_of, put, stage_for, tensors_of
from safetensors.torch import save_file

from builder.checkpoint.reading import load
from builder.errors import CheckpointError

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def with_header(change: Callable[[Header], object], name: str = "model.safetensors") -> Callable[[Path], None]:
    """A fault in the header of a file."""

    def apply(folder: Path) -> None:
        header, data = header_of(folder / name)
        change(header)
        put(folder / name, header, data)

    return apply


def with_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A fault in the index."""

    def apply(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return apply


def renamed(old: str, new: str) -> Callable[[Header], object]:
    return lambda header: header.update({new: header.pop(old)})


def cut(file: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / file, size if size >= 0 else (folder / file).stat().st_size + size)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = tensors_of(folder)
        del tensors[name]
        save_file(tensors, folder / "model.safetensors")

    return apply


def twice(folder: Path) -> None:
    header, data = header_of(folder / "model.safetensors")
    text = json.dumps(header)[:-1] + ', "embed.weight": {}}'
    put(folder / "model.safetensors", text.encode(), data)


def in_both(folder: Path) -> None:
    header, data = header_of(folder / SECOND)
    header["embed.weight"] = {"dtype": "BF16", "shape": [1], "data_offsets": [len(data), len(data) + 2]}
    put(folder / SECOND, header, data + b"xx")


def table_out_of_range(folder: Path) -> None:
    header, data = header_of(folder / "model.safetensors")
    start = header["layers.1.ffn.gate.tid2eid"]["data_offsets"][0]
    put(folder / "model.safetensors", header, data[:start] + struct.pack("<q", 8) + data[start + 8 :])


def swapped(name: str, dtype: str) -> Callable[[Header], object]:
    return lambda header: header[name].update(dtype=dtype)


NORM = "layers.0.attn_norm.weight"
W1 = "layers.0.ffn.experts.3.w1"

FAULTS: dict[str, tuple[Path, Callable[[Path], object], str]] = {
    "missing": (FLASH, without("norm.weight"), r"tiny: norm.weight: expected F32 \[64\], found no such tensor"),
    "not in the header": (
        FLASH,
        with_header(lambda h: h.pop("norm.weight")),
        r"expected 3191504 bytes of data by the file's size, found 3191248 bytes by its header",
    ),
    "unknown name": (
        FLASH,
        with_header(renamed(NORM, "layers.0.attn_normal.weight")),
        (
            r"tiny: layers.0.attn_norm.weight: expected F32 \[64\], found no such"
            r" tensor\n.*model.safetensors: layers.0.attn_normal.weight: expected no tensor of"
            r" this name, found F32 \[64\]"
        ),
    ),
    "name of another layer kind": (
        FLASH,
        with_header(renamed("layers.3.ffn.gate.bias", "layers.0.ffn.gate.bias")),
        r"layers.0.ffn.gate.bias: expected no tensor of this name",
    ),
    "layer too many": (
        FLASH,
        with_header(renamed(NORM, "layers.6.attn_norm.weight")),
        r"layers.6.attn_norm.weight: expected no tensor of this name, found F32 \[64\]",
    ),
    "expert too many": (
        FLASH,
        with_header(renamed(f"{W1}.weight", "layers.0.ffn.experts.8.w1.weight")),
        r"layers.0.ffn.experts.3.w1.weight: expected F32 \[32, 64\], found no such tensor",
    ),
    "shape": (
        FLASH,
        with_header(lambda h: h[f"{W1}.weight"].update(shape=[64, 32])),
        (r"model.safetensors: layers.0.ffn.experts.3.w1.weight: expected F32 \[32, 64\], found" r" F32 \[64, 32\]"),
    ),
    "size": (
        FLASH,
        with_header(lambda h: h[NORM].update(shape=[63])),
        (
            r"model.safetensors: layers.0.attn_norm.weight: expected 252 bytes for F32 \[63\],"
            r" found 256 bytes by its data_offsets"
        ),
    ),
    "dtype": (
        FLASH,
        with_header(swapped(NORM, "I32")),
        r"layers.0.attn_norm.weight: expected F32 \[64\], found I32 \[64\]",
    ),
    "dtype nobody knows": (
        FLASH,
        with_header(swapped(NORM, "F4")),
        r"layers.0.attn_norm.weight: expected a dtype of F64, .*, found F4",
    ),
    "scale dtype": (
        FP4,
        with_header(swapped(f"{W1}.scale", "U8"), FIRST),
        (
            r"00001-of-00002.safetensors: layers.0.ffn.experts.3.w1.scale: expected F8_E8M0 \[64,"
            r" 4\], found U8 \[64, 4\]"
        ),
    ),
    "expert dtype": (
        FP4,
        with_header(swapped(f"{W1}.weight", "F8_E4M3"), FIRST),
        (
            r"w1.weight: expected I8 \[64, 64\], found F8_E4M3 \[64, 64\]; the files hold FP8"
            r" weights, and config.json says otherwise \(expert_dtype\)"
        ),
    ),
    "half precision of another kind": (
        FP4,
        with_header(swapped("norm.weight", "F16"), SECOND),
        r"norm.weight: expected BF16 \[128\], found F16 \[128\]",
    ),
    "gap": (
        FLASH,
        with_header(
            lambda h: h[NORM].update(data_offsets=[h[NORM]["data_offsets"][0] + 4, h[NORM]["data_offsets"][1] + 4])
        ),
        r"expected data at byte \d+, found byte \d+",
    ),
    "offsets backwards": (
        FLASH,
        with_header(lambda h: h[NORM].update(data_offsets=[8, 4])),
        r"layers.0.attn_norm.weight: expected 256 bytes for F32 \[64\], found -4 bytes",
    ),
    "negative offset": (
        FLASH,
        with_header(lambda h: h[NORM].update(data_offsets=[-256, 0])),
        r"layers.0.attn_norm.weight: expected two data_offsets, found \[-256, 0\]",
    ),
    "huge shape": (
        FLASH,
        with_header(lambda h: h[NORM].update(shape=[1 << 62, 1 << 62])),
        r"layers.0.attn_norm.weight: expected \d+ bytes for F32",
    ),
    "fraction": (
        FLASH,
        with_header(lambda h: h[NORM].update(shape=[64.0])),
        r"layers.0.attn_norm.weight: expected a shape of whole numbers, found \[64.0\]",
    ),
    "truth": (
        FLASH,
        with_header(lambda h: h[NORM].update(shape=[True, 64])),
        r"expected a shape of whole numbers, found \[True, 64\]",
    ),
    "more members": (
        FLASH,
        with_header(lambda h: h[NORM].update(more=1)),
        (
            r"layers.0.attn_norm.weight: expected dtype, shape and data_offsets, found dtype,"
            r" shape, data_offsets, more"
        ),
    ),
    "metadata": (
        FLASH,
        with_header(lambda h: h.update(__metadata__={"format": 1})),
        r"__metadata__: expected an object of strings, found \[1\]",
    ),
    "twice in one file": (
        FLASH,
        twice,
        (r"model.safetensors: expected a header of well-formed JSON, found the name" r" embed.weight is there twice"),
    ),
    "no JSON": (
        FLASH,
        lambda f: put(f / "model.safetensors", b"{", b""),
        (r"model.safetensors: expected a header of well-formed JSON, found Expecting property" r" name"),
    ),
    "nested": (
        FLASH,
        lambda f: put(f / "model.safetensors", b"[" * 200_000, b""),
        r"model.safetensors: expected a header of well-formed JSON, found",
    ),
    "no object": (
        FLASH,
        lambda f: put(f / "model.safetensors", b"[]", b""),
        r"expected a header that is a JSON object, found list",
    ),
    "empty": (FLASH, cut("model.safetensors", 0), r"model.safetensors: expected at least 8 bytes, found 0 bytes"),
    "cut in the header": (
        FLASH,
        cut("model.safetensors", 1000),
        (r"model.safetensors: expected a header of at most 992 bytes, found 34008 bytes by its" r" first 8 bytes"),
    ),
    "cut in the data": (
        FLASH,
        cut("model.safetensors", -100),
        (
            r"model.safetensors: expected 3191404 bytes of data by the file's size, found 3191504"
            r" bytes by its header; the file is cut or damaged"
        ),
    ),
    "longer": (
        FLASH,
        lambda f: put(
            f / "model.safetensors", header_of(f / "model.safetensors")[0], header_of(f / "model.safetensors")[1] + b"x"
        ),
        r"expected 3191505 bytes of data by the file's size, found 3191504 bytes",
    ),
    "length of nonsense": (
        FLASH,
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 100),
        r"expected a header of at most 92 bytes, found 18446744073709551615 bytes",
    ),
    "numbers of experts": (
        FLASH,
        table_out_of_range,
        r"layers.1.ffn.gate.tid2eid: expected numbers of experts, 0 to 7, found 0 to 8",
    ),
    "pickle": (
        FLASH,
        pickled,
        (
            r"tiny: expected model.safetensors, found pytorch_model.bin; only safetensors is"
            r" read, and nothing is unpickled"
        ),
    ),
    "nothing": (
        FLASH,
        lambda f: (f / "model.safetensors").unlink(),
        r"tiny: expected model.safetensors.index.json or model.safetensors, found neither",
    ),
    "link to nothing": (
        FP4,
        lambda f: ((f / FIRST).unlink(), (f / FIRST).symlink_to("nowhere"))[0],
        r"00001-of-00002.safetensors: expected a file, found a link to nothing",
    ),
    "pipe": (
        FP4,
        lambda f: ((f / FIRST).unlink(), os.mkfifo(f / FIRST))[0],
        r"00001-of-00002.safetensors: expected a regular file, found something else",
    ),
    "no index": (
        FP4,
        lambda f: (f / INDEX).unlink(),
        (
            r"tiny: expected model.safetensors.index.json or model.safetensors, found 2 files"
            r" without an index: model-00001"
        ),
    ),
    "shard missing": (
        FP4,
        lambda f: (f / SECOND).unlink(),
        r"00002-of-00002.safetensors: expected a file, found no such file",
    ),
    "index out of the folder": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": f"../tiny/{FIRST}"})),
        (
            r"index.json: embed.weight: expected the name of a .safetensors file beside the"
            r" index, found '../tiny/model-00001"
        ),
    ),
    "index with dots": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": "a..safetensors"})),
        (r"embed.weight: expected the name of a .safetensors file beside the index, found" r" 'a..safetensors'"),
    ),
    "index with a backslash": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": "a\\b.safetensors"})),
        r"expected the name of a .safetensors file beside the index",
    ),
    "index of absolute paths": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": "/etc/passwd"})),
        r"expected the name of a .safetensors file beside the index, found '/etc/passwd'",
    ),
    "index of numbers": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": 3})),
        r"expected the name of a .safetensors file beside the index, found 3",
    ),
    "index of another shard": (
        FP4,
        with_index(lambda m: m.update({"embed.weight": SECOND if m["embed.weight"] == FIRST else FIRST})),
        (r"index.json: embed.weight: expected model-0000\d-of-00002.safetensors, where it is," r" found model-0000\d"),
    ),
    "index lists more": (
        FP4,
        with_index(lambda m: m.update({"mtp.0.head.weight": FIRST})),
        (
            r"00001-of-00002.safetensors: mtp.0.head.weight: expected it here by"
            r" model.safetensors.index.json, found no such tensor"
        ),
    ),
    "index lists less": (
        FP4,
        with_index(lambda m: m.pop("embed.weight")),
        r"embed.weight: expected it in model.safetensors.index.json, found no such name there",
    ),
    "index is a list": (
        FP4,
        lambda f: (f / INDEX).write_text("[]"),
        r"index.json: expected a weight index, found holds no JSON object",
    ),
    "index is empty": (
        FP4,
        lambda f: (f / INDEX).write_text('{"weight_map": {}}'),
        r"index.json: weight_map: expected an object of tensor names and file names, found {}",
    ),
    "in two shards": (
        FP4,
        in_both,
        (r"embed.weight: expected each tensor once, found it in" r" model-00001-of-00002.safetensors too"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_said_of_a_fault(name: str, tmp_path: Path) -> None:
    source, break_it, words = FAULTS[name]
    folder = copy_of(source, tmp_path / "tiny")
    stage = stage_for(folder, "spec=mtp")
    break_it(folder)
    with pytest.raises(CheckpointError, match=words) as caught:
        load(stage, folder)
    assert "\nTraceback" not in str(caught.value)
    assert all(tensor.is_meta for tensor in [*stage.parameters(), *stage.buffers()])


def test_a_stage_with_memory_keeps_nothing_of_a_failed_load(tmp_path: Path) -> None:
    folder = copy_of(FLASH, tmp_path / "tiny")
    stage = stage_for(folder, "spec=mtp", device="cpu")
    table_out_of_range(folder)
    with pytest.raises(CheckpointError, match="numbers of experts"):
        load(stage, folder)
    assert all(tensor.is_meta for tensor in [*stage.parameters(), *stage.buffers()])
    load(stage, FLASH)
    assert torch.equal(stage.get_parameter("norm.weight"), tensors_of(FLASH)["norm.weight"])
    assert stage.get_buffer("layers.0.attn.rotary.frequencies")[0] == 1


def test_of_many_faults_the_first_are_said(tmp_path: Path) -> None:
    folder = copy_of(FLASH, tmp_path / "tiny")
    stage = stage_for(FP4)
    with pytest.raises(CheckpointError) as caught:
        load(stage, folder)
    lines = str(caught.value).splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("… and ")


@pytest.mark.parametrize("path", ["nowhere", "file", "a\0b"])
def test_what_is_no_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a folder, found"):
        load(stage_for(FLASH), tmp_path / path)
