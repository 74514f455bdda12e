"""Checkpoints in the official layout give the outputs of the official code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Run
from safetensors.torch import load_file, save_file

import builder
from builder.runtime.model import open_model
from builder.runtime.step import cached_step

CHECKPOINTS = Path(__file__).parent / "data" / "checkpoints"
COMPARED = {
    "prefill_logits",
    "chunked_logits",
    "decode_logits",
    "prefill_hidden",
    "decode_hidden",
    "mtp_prefill_logits",
    "mtp_decode_logits",
}


@pytest.mark.parametrize("name", ["tiny-flash", "tiny-fp4"])
def test_every_output_is_the_official_one(run: Run, name: str) -> None:
    result = run("task=verify", f"checkpoint={CHECKPOINTS / name}", "spec=mtp", "hardware=cpu", "output=json")
    assert result.code == 0
    assert result.document["max_abs_diff"].keys() == COMPARED
    assert max(result.document["max_abs_diff"].values()) < 2e-5
    assert result.document["ok"] is True


def test_without_a_drafter_its_outputs_are_not_compared(run: Run) -> None:
    result = run("task=verify", f"checkpoint={CHECKPOINTS / 'tiny-flash'}", "output=json", "hardware=cpu")
    assert result.document["max_abs_diff"].keys() == {name for name in COMPARED if "mtp" not in name}


@pytest.mark.parametrize("weights", ["native", "float32"])
def test_dequantized_once_or_in_the_operation_is_the_same(run: Run, weights: str) -> None:
    checkpoint = f"checkpoint={CHECKPOINTS / 'tiny-fp4'}"
    result = run("task=verify", checkpoint, f"runtime.weights={weights}", "hardware=cpu", "output=json")
    assert max(result.document["max_abs_diff"].values()) < 2e-5


def test_a_difference_is_a_no(run: Run, tmp_path: Path) -> None:
    for file in (CHECKPOINTS / "tiny-flash").iterdir():
        if file.name != "expected.safetensors":
            (tmp_path / file.name).symlink_to(file)
    tensors = load_file(CHECKPOINTS / "tiny-flash" / "expected.safetensors")
    tensors["decode_logits"][0, 3, 7] += 0.5
    save_file(tensors, tmp_path / "expected.safetensors", {"prompt_length": "150"})
    result = run("task=verify", f"checkpoint={tmp_path}", "hardware=cpu", "output=json")
    assert (result.code, result.document["ok"]) == (1, False)
    assert result.document["max_abs_diff"]["decode_logits"] == pytest.approx(0.5, abs=1e-4)
    shown = run("task=verify", f"checkpoint={tmp_path}", "hardware=cpu")
    assert "Not all within the tolerance of 0.0001." in shown.out


def test_without_known_outputs_it_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(CHECKPOINTS / "tiny-flash" / name)
    result = run("task=verify", f"checkpoint={tmp_path}", "hardware=cpu")
    assert result.code == 2
    assert "expected.safetensors: is not there" in result.err


def test_transformers_can_be_the_other_side(run: Run) -> None:
    checkpoint = f"checkpoint={CHECKPOINTS / 'tiny-fp4'}"
    result = run("task=verify", checkpoint, "verify.against=transformers", "hardware=cpu", "output=json")
    assert result.code == 0
    assert result.document["max_abs_diff"].keys() == {"prefill_logits", "chunked_logits", "decode_logits"}
    assert max(result.document["max_abs_diff"].values()) < 2e-5


def test_any_part_can_be_looked_at() -> None:
    folder = str(CHECKPOINTS / "tiny-flash")
    model = open_model(builder.compose(["task=generate", f"checkpoint={folder}", "hardware=cpu", "spec=mtp"]))
    expected = load_file(f"{folder}/expected.safetensors")
    ids = expected["input_ids"][:1, :150].tolist()
    with torch.inference_mode(), builder.capture(model.stage, ["layers.3.attn", "stream"]) as seen:
        model.stage(cached_step(model.cache(1, 150), ids, [0]))
    assert (seen["stream"][0] - expected["prefill_hidden"][0]).abs().max() < 2e-5
    assert seen["layers.3.attn"][0].shape == (150, 64)
    with (
        pytest.raises(ValueError, match=r"layers\.3\.atn is no part of this stage"),
        builder.capture(model.stage, ["layers.3.atn"]),
    ):
        pass


def altered(tmp_path: Path, **changed: torch.Tensor | None) -> Path:
    """tiny-flash with other known inputs and outputs."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(CHECKPOINTS / "tiny-flash" / name)
    tensors = load_file(CHECKPOINTS / "tiny-flash" / "expected.safetensors")
    kept = {name: value for name, value in {**tensors, **changed}.items() if value is not None}
    save_file(kept, tmp_path / "expected.safetensors", {"prompt_length": "150"})
    return tmp_path


def test_nothing_to_compare_with_is_no_yes(run: Run, tmp_path: Path) -> None:
    names = load_file(CHECKPOINTS / "tiny-flash" / "expected.safetensors")
    folder = altered(tmp_path, **{name: None for name in names if name != "input_ids"})
    result = run("task=verify", f"checkpoint={folder}", "hardware=cpu")
    assert result.code == 2
    assert "found none of them" in result.err


def test_a_known_output_that_is_no_number_is_a_no(run: Run, tmp_path: Path) -> None:
    logits = load_file(CHECKPOINTS / "tiny-flash" / "expected.safetensors")["prefill_logits"]
    logits[0, 0, 0] = torch.nan
    folder = altered(tmp_path, prefill_logits=logits)
    result = run("task=verify", f"checkpoint={folder}", "hardware=cpu", "output=json")
    assert (result.code, result.document["ok"]) == (1, False)
    assert result.document["max_abs_diff"]["prefill_logits"] is None


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (torch.full((2, 164), 200), "input_ids: expected 0 to 199, found 200 to 200"),
        (torch.zeros(2, 164), "input_ids: expected [batch, prompt_length + decoded], found (2, 164) of torch.float32"),
        (
            torch.zeros(0, 164, dtype=torch.int64),
            "input_ids: expected [batch, prompt_length + decoded], found (0, 164)",
        ),
    ],
)
def test_unusable_inputs_are_refused(run: Run, tmp_path: Path, ids: torch.Tensor, found: str) -> None:
    result = run("task=verify", f"checkpoint={altered(tmp_path, input_ids=ids)}", "hardware=cpu")
    assert result.code == 2
    assert found in result.err


def test_known_inputs_may_be_more_than_a_step_holds(run: Run) -> None:
    checkpoint = f"checkpoint={CHECKPOINTS / 'tiny-flash'}"
    result = run("task=verify", checkpoint, "spec=mtp", "runtime.max_num_batched_tokens=16", "hardware=cpu")
    assert result.code == 0


def test_a_weight_that_is_no_number_is_legal_data(run: Run, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINTS / "tiny-flash" / "model.safetensors")
    tensors["layers.2.attn.wkv.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(CHECKPOINTS / "tiny-flash" / "config.json")
    arguments = (f"checkpoint={tmp_path}", "hardware=cpu", "kernels=reference", "output=json")
    result = run("task=generate", *arguments, "prompt_ids=[5,5,3]", "generate.max_new_tokens=3")
    assert result.code == 0
    assert all(0 <= token < 200 for token in result.document["token_ids"][0])
