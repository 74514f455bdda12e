"""Checkpoints out: other layouts and formats, the same bytes when they come back, resumable, the source untouched."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import FLASH, FP4, composed, config_of, copy_of, raw, stage_for, tensors_of, write

from builder.checkpoint import convert as convert_module
from builder.checkpoint import writing
from builder.checkpoint.convert import STATE, ConvertReport
from builder.checkpoint.reading import load
from builder.errors import CheckpointError, ConfigError
from builder.kernels.reference.quantization import dequantize
from builder.runtime.conversion import convert_folder, run_convert
from builder.schema.config_json import differing_fields, read_config_json

LAYOUTS = ["transformers", "transformers_fused"]


def converted(source: Path, target: Path, to: str = "official", weights: str = "native") -> Path:
    convert_folder(composed(source), source, target, to=to, weights=weights)
    return target


def assert_equal(one: Path, two: Path) -> None:
    left, right = tensors_of(one), tensors_of(two)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert (tensor.dtype, tensor.shape) == (right[name].dtype, right[name].shape), name
        assert torch.equal(raw(tensor), raw(right[name])), name


@pytest.mark.parametrize("source", [FLASH, FP4], ids=lambda folder: folder.name)
def test_official_to_official_is_the_same(source: Path, tmp_path: Path) -> None:
    target = converted(source, tmp_path / "out")
    assert_equal(source, target)
    assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()
    if source == FLASH:
        assert (target / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("to", LAYOUTS)
def test_through_transformers_and_back_is_the_same(to: str, tmp_path: Path) -> None:
    there = converted(FLASH, tmp_path / "there", to)
    back = converted(there, tmp_path / "back")
    assert_equal(FLASH, back)
    models = [read_config_json(str(folder)) for folder in (FLASH, there, back)]
    assert not [*differing_fields(models[0], models[1]), *differing_fields(models[0], models[2])]


@pytest.mark.parametrize("to", ["official", *LAYOUTS])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_dequantized_files_hold_the_same_values(to: str, weights: str, tmp_path: Path) -> None:
    target = converted(FP4, tmp_path / "out", to, weights)
    config = config_of(target)
    assert not {"quantization_config", "expert_dtype"} & config.keys()
    assert config.get("torch_dtype", config.get("dtype")) == weights
    one, two = stage_for(FP4, "spec=mtp", f"runtime.weights={weights}"), stage_for(target, "spec=mtp")
    load(one, FP4)
    load(two, target)
    for (name, left), (_, right) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert torch.equal(left, right), name
    original = tensors_of(FP4)
    name = "layers.3.ffn.experts.5.w2"
    value = dequantize(original[f"{name}.weight"], original[f"{name}.scale"], getattr(torch, weights))
    assert torch.equal(two.get_parameter("layers.3.ffn.experts.w2.weight")[5], value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", LAYOUTS)
def test_transformers_loads_what_is_written(to: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = converted(FP4, tmp_path / "out", to, "float32")
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, info = loaded
    assert not any(info.values()), info
    known = {name: tensor for name, tensor in _expected(FP4).items() if name in ("input_ids", "prefill_logits")}
    length = known["prefill_logits"].shape[1]
    with torch.no_grad():
        logits = model(known["input_ids"][:, :length]).logits
    assert (logits - known["prefill_logits"]).abs().max() < 1e-4


def _expected(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "expected.safetensors")


@pytest.mark.parametrize("to", LAYOUTS)
def test_files_that_transformers_saved(to: str, tmp_path: Path) -> None:
    """Both of its layouts come in, and official files go out that say themselves that there is no MTP block."""
    plain = {name: tensor for name, tensor in tensors_of(FLASH).items() if not name.startswith("mtp.")}
    without = write(tmp_path / "without", config_of(FLASH), plain)
    saved = converted(without, tmp_path / "saved", to)
    (saved / "config.json").write_text(json.dumps(config_of(saved) | {"num_nextn_predict_layers": 1}))
    back = converted(saved, tmp_path / "back")
    assert_equal(without, back)
    assert config_of(back)["num_nextn_predict_layers"] == 0
    assert config_of(back)["compress_ratios"] == [0, 0, 4, 128, 4, 128]
    with pytest.raises(ConfigError):
        composed(back, "spec=mtp")


def test_large_files_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    for to in ("official", "transformers_fused"):
        target = converted(FLASH, tmp_path / to, to)
        files = sorted(file.name for file in target.glob("*.safetensors"))
        assert len(files) > 10
        assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
        index = json.loads((target / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors_of(target).values())
        assert index["weight_map"].keys() == tensors_of(target).keys()
    assert_equal(FLASH, converted(tmp_path / "transformers_fused", tmp_path / "back"))


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 200 KB."""
    monkeypatch.setattr(convert_module, "shards_of", lambda outputs: writing.shards_of(outputs, 200_000))


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    whole, target = converted(FLASH, tmp_path / "whole"), tmp_path / "out"
    count = 0
    original = writing.values_of

    def stopping(*arguments: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == 150:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(writing, "values_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        converted(FLASH, target)
    done = {file.name: file.stat().st_mtime_ns for file in target.glob("model-*")}
    assert len(done) > 2
    assert not (target / "config.json").exists()
    report = convert_folder(composed(FLASH), FLASH, target, to="official", weights="native")
    assert set(report.reused) == done.keys()
    assert all((target / name).stat().st_mtime_ns == stamp for name, stamp in done.items())
    assert {file.name for file in target.iterdir()} == {file.name for file in whole.iterdir()}
    assert_equal(FLASH, target)
    (target / report.files[0]).write_bytes(b"broken")
    again = convert_folder(composed(FLASH), FLASH, target, to="official", weights="native")
    assert set(report.files[:-1]) - set(again.reused) == {report.files[0]}
    assert_equal(FLASH, target)


def test_the_source_is_never_touched(tmp_path: Path) -> None:
    source = copy_of(FLASH, tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in source.iterdir()}
    (tmp_path / "link").symlink_to(source)
    for target in (source, source / "inside", tmp_path / "link", tmp_path / "link" / "inside"):
        with pytest.raises(CheckpointError, match="expected a folder outside of the source, found"):
            converted(source, target)
    target = converted(source, tmp_path / "out")
    assert (target / "tokenizer.json").read_text() == "{}"
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in source.iterdir()} == before


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(CheckpointError, match=r"full: expected an empty folder, .*found 1 files, such as thesis\.tex"):
        converted(FLASH, tmp_path / "full")
    target = converted(FLASH, tmp_path / "out")
    with pytest.raises(CheckpointError, match="expected the same conversion of the same files, found another one"):
        converted(FLASH, target, "transformers")
    (target / "thesis.tex").write_text("")
    with pytest.raises(CheckpointError, match=r"such as thesis\.tex"):
        converted(FLASH, target)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a folder, found a file"):
        converted(FLASH, tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a folder that can be written, found Not a directory"):
        converted(FLASH, tmp_path / "file" / "out")


def test_transformers_layouts_hold_no_quantized_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"convert\.weights=native: .* use bfloat16 or float32"):
        converted(FP4, tmp_path / "out", "transformers")
    assert not (tmp_path / "out").exists()


def test_the_task(tmp_path: Path) -> None:
    words = ["task=convert", f"out={tmp_path / 'out'}", "convert.to=transformers", "convert.weights=float32", "pp=2"]
    outcome = run_convert(composed(FP4, *words))
    assert outcome.exit_code == 0
    report = ConvertReport(*(outcome.document[key] for key in ConvertReport.__slots__))
    assert (report.files, report.reused, report.left_out) == (("model.safetensors",), (), ())
    assert report.tensors == len(tensors_of(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / STATE).read_text())["to"] == "transformers"
    with pytest.raises(ConfigError, match="out: is missing; give out=DIR"):
        run_convert(composed(FP4, "task=convert"))
