"""The tap of a DSpark drafter holds the named layers' averages over the streams, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import random_ids, random_model, small

import builder
from builder.runtime.step import cached_step

DSPARK = {
    "dspark_block_size": 3,
    "dspark_noise_token_id": 1,
    "dspark_markov_rank": 4,
    "dspark_target_layer_ids": [1, 3],
}


@pytest.fixture
def config(tmp_path: Path) -> Any:
    flash = Path(__file__).parent / "data" / "checkpoints" / "tiny-flash" / "config.json"
    values = json.loads(flash.read_text())
    ratios = [*values["compress_ratios"][:-1], 0, 0, 0]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**values, **DSPARK, "compress_ratios": ratios}))
    return small("model=custom", f"model.config={path}", "spec=dspark", "runtime.max_num_batched_tokens=32")


def test_the_rows_are_the_averages_of_the_named_layers(config: Any) -> None:
    model = random_model(config)
    tap: Any = model.stage.get_submodule("aux_hidden_tap")
    address, cache = tap.rows.data_ptr(), model.cache(1, 64)
    for count, row in ((11, 0), (5, 20)):
        before = tap.rows.clone()
        with torch.inference_mode(), builder.capture(model.stage, ["layers.1", "layers.3"]) as seen:
            model.stage.run_layers(cached_step(cache, [random_ids(count, 200)], [0], row))
        means = torch.cat([seen[f"layers.{layer}"][-1].mean(dim=1) for layer in (1, 3)], dim=-1)
        assert torch.equal(tap.rows[row : row + count], means)
        assert torch.equal(tap.rows[:row], before[:row])
        assert torch.equal(tap.rows[row + count :], before[row + count :])
    assert tap.rows.data_ptr() == address
    assert "mtp_stash" not in dict(model.stage.named_children())


def test_more_rows_than_it_holds_are_an_error(config: Any) -> None:
    model = random_model(config)
    message = (
        "rows 30 to 34 of the tap of hidden states: it holds 32; raise runtime.max_num_batched_tokens to 35 or send"
    )
    with torch.inference_mode(), pytest.raises(ValueError, match=message):
        model.stage.run_layers(cached_step(model.cache(1, 64), [random_ids(5, 200)], [0], 30))


def test_training_has_plain_mixes(config: Any) -> None:
    stage = builder.build(config, trainable=True)
    names = {type(module).__name__ for name, module in stage.named_modules() if name.endswith(".mix")}
    assert names == {"StreamMix"}
