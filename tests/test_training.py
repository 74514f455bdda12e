"""The backward pass, the training script, and the checkpoint that it made."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

import builder
from builder.assembly.build import held_tensors
from builder.assembly.stages import official
from builder.components.base.spec import Origin, walk
from builder.components.mtp_stash.module import MTPStash
from builder.components.stage.module import Stage
from builder.kernels.reference import attention, compressor, hyper_connections
from builder.paths import assets_dir
from builder.schema.config_json import differing_fields, read_config_json

ROOT = Path(__file__).parents[1]
TINY = assets_dir() / "tiny"

SMALL = [
    "model.hidden_size=32",
    "model.num_hidden_layers=3",
    "model.layer_types=[swa,csa,hca]",
    "model.num_hash_layers=1",
    "model.hca_ratio=8",
    "model.num_attention_heads=2",
    "model.head_dim=16",
    "model.qk_rope_head_dim=8",
    "model.q_lora_rank=16",
    "model.o_lora_rank=8",
    "model.sliding_window=8",
    "model.index_n_heads=2",
    "model.index_head_dim=16",
    "model.index_topk=3",
    "model.n_routed_experts=4",
    "model.moe_intermediate_size=16",
    "model.hc_sinkhorn_iters=4",
]
"""Every part of the tiny model in few numbers: every kind of layer reads entries within 32 tokens."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """``examples/train_tiny.py``."""
    spec = importlib.util.spec_from_file_location("train_tiny", ROOT / "examples" / "train_tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def prepared(script: ModuleType, seed: int = 0) -> tuple[Stage, Any]:
    """A small model with its first values, and the loss of its indexers."""
    _, stage = script.trainable_model("tiny", *SMALL)
    script.initialise(stage, seed)
    return stage, script.IndexerLoss(stage)


def windows_of(count: int, length: int = 35) -> Tensor:
    return torch.randint(0, 256, (count, length), generator=torch.Generator().manual_seed(1))


def loss_of(script: ModuleType, stage: Stage, indexers: Any, windows: Tensor) -> Tensor:
    parts = script.losses(script.predict(stage, windows), windows)
    return parts[0] + 0.3 * parts[1] + 0.1 * parts[2] + indexers.take()


# The backward pass ----------------------------------------------------------------------------------------------------


def test_the_loss_falls_on_a_repeated_batch(script: ModuleType) -> None:
    stage, indexers = prepared(script)
    optimizer, balance, windows = script.optimizer_of(stage), script.Balance(stage), windows_of(2)
    found: list[float] = []
    for _ in range(25):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
        optimizer.zero_grad()
        loss = loss_of(script, stage, indexers, windows)
        loss.backward()
        optimizer.step()
        balance.move(1e-3)
        found.append(loss.item())
    assert found[-1] < 0.6 * found[0], found


def test_every_weight_has_a_gradient(script: ModuleType) -> None:
    stage, indexers = prepared(script)
    loss_of(script, stage, indexers, windows_of(6)).backward()
    for path, parameter in stage.named_parameters():
        if not script.is_learned(path):
            assert parameter.grad is None, f"{path} decides only the choice"
            continue
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path
        assert parameter.grad.any(), path
        if ".experts." in path and "shared" not in path:
            assert parameter.grad.flatten(1).any(-1).all(), f"{path}: an expert without a gradient"


def test_without_its_own_loss_an_indexer_has_no_gradient(script: ModuleType) -> None:
    """Its picks are whole numbers; all else of the model has one, and the indexers' loss touches nothing else."""
    stage, indexers = prepared(script)
    script.losses(script.predict(stage, windows_of(2)), windows_of(2))[0].backward()
    assert {path for path, p in stage.named_parameters() if p.grad is None and "mtp" not in path} == {
        path for path, _ in stage.named_parameters() if ("indexer" in path or "gate.bias" in path) and "mtp" not in path
    }
    stage.zero_grad()
    indexers.take()
    script.predict(stage, windows_of(2))
    indexers.take().backward()
    assert all("indexer" in path for path, p in stage.named_parameters() if p.grad is not None)


def test_gradients_agree_with_differences(script: ModuleType) -> None:
    """The whole model in double precision, along one random direction of all weights."""
    _, stage = script.trainable_model("tiny", *SMALL, "runtime.dtype=float64")
    script.initialise(stage, 0)
    stage.double()
    windows, random = windows_of(2), torch.Generator().manual_seed(0)
    script.losses(script.predict(stage, windows), windows)[1].backward()
    weights = [parameter for parameter in stage.parameters() if parameter.grad is not None]
    directions = [torch.randn(weight.shape, generator=random, dtype=torch.float64) for weight in weights]
    slope = sum(float((cast("Tensor", w.grad) * d).sum()) for w, d in zip(weights, directions, strict=True))

    @torch.no_grad()
    def moved(by: float) -> float:
        for weight, direction in zip(weights, directions, strict=True):
            weight.add_(direction, alpha=by)
        return float(script.losses(script.predict(stage, windows), windows)[1])

    # forward, and back past the beginning; no pick flips on so short a way
    step = 1e-6
    ahead, behind = moved(step), moved(-2 * step)
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-4)


def doubles(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_()


def test_the_mix_before_a_sub_layer() -> None:
    k, hidden = 3, 4
    mixes = 2 * k + k * k

    def before(stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return hyper_connections.before(stream, fn, base, scale, iters=3, eps=1e-6, norm_eps=1e-6)

    inputs = doubles(2, k, hidden), doubles(mixes, k * hidden, seed=1), doubles(mixes, seed=2), doubles(3, seed=3)
    assert torch.autograd.gradcheck(before, inputs)


def test_the_mix_after_a_sub_layer() -> None:
    inputs = doubles(2, 4), doubles(2, 3, 4, seed=1), doubles(2, 3, seed=2), doubles(2, 3, 3, seed=3)
    assert torch.autograd.gradcheck(hyper_connections.after, inputs)


def test_the_last_mix() -> None:
    def head(stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> Tensor:
        return hyper_connections.head(stream, fn, base, scale, eps=1e-6, norm_eps=1e-6)

    inputs = doubles(2, 3, 4), doubles(3, 12, seed=1), doubles(3, seed=2), doubles(1, seed=3)
    assert torch.autograd.gradcheck(head, inputs)


@pytest.mark.parametrize("source", ["window", "ready", "picked"])
def test_attention(source: str) -> None:
    tokens, reach = 5, 2
    starts = torch.zeros(2, dtype=torch.long)
    ready = (torch.arange(tokens) + 1).expand(2, -1) // 2
    picks = torch.tensor([[-1, -1], [0, -1], [0, -1], [0, 1], [1, 0]]).expand(2, -1, -1)
    entries = () if source == "window" else (doubles(2, 2, 4, seed=3),)

    def attend(queries: Tensor, window: Tensor, sink: Tensor, *entries: Tensor) -> Tensor:
        one = entries[0] if entries else None
        return attention.attend(queries, window, starts, sink, one, ready, picks if source == "picked" else None)

    inputs = doubles(2, tokens, 3, 4), doubles(2, reach + tokens, 4, seed=1), doubles(3, seed=2), *entries
    assert torch.autograd.gradcheck(attend, inputs)


@pytest.mark.parametrize("first", [False, True])
def test_pooling(first: bool) -> None:
    absent = torch.tensor([[first, first, False, False], [False] * 4])
    assert torch.autograd.gradcheck(
        lambda k, s: compressor.pool(k, s, absent), (doubles(2, 4, 3), doubles(2, 4, 3, seed=1))
    )


def test_training_has_no_stash(script: ModuleType) -> None:
    config, stage = script.trainable_model()
    assert not any(isinstance(module, MTPStash) for module in stage.modules())
    assert any(isinstance(module, MTPStash) for module in builder.build(config).modules())
    assert all(parameter.requires_grad for parameter in stage.parameters())


def test_the_bias_moves_towards_idle_experts(script: ModuleType) -> None:
    stage, _ = prepared(script)
    balance = script.Balance(stage)
    balance.counts[0] = torch.tensor([9.0, 1.0, 5.0, 5.0])
    balance.move(0.5)
    assert balance.routers[0].bias.tolist() == [-0.5, 0.5, 0.0, 0.0]


# The text -------------------------------------------------------------------------------------------------------------


def test_the_text_is_the_same_every_time(script: ModuleType) -> None:
    names = [name for name, _ in script.stdlib_files()]
    assert names == sorted(names)
    assert {"os.py", "json/decoder.py"} <= set(names)
    assert not any("test" in name.split("/") for name in names)
    held = [name for name in names if script.is_held_out(name)]
    assert 0.01 < len(held) / len(names) < 0.1
    text = script.Text([b"one\ntwo\nthree\n", b"four\n" * 9])
    assert text.windows(5, 8, 3).equal(text.windows(5, 8, 3))
    assert not text.windows(5, 8, 3).equal(text.windows(5, 8, 4))


def test_the_table_of_hash_layers_is_spread_evenly(script: ModuleType) -> None:
    table = script.spread(280, 2, 8, 0)
    assert table.equal(script.spread(280, 2, 8, 0))
    assert table.flatten().bincount().tolist() == [70] * 8
    assert (table[:, 0] != table[:, 1]).all()


# The checkpoint -------------------------------------------------------------------------------------------------------


def shipped() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def test_every_byte_is_its_own_token() -> None:
    tokenizer = shipped()
    config = builder.compose(["model=tiny"]).model
    assert tokenizer.get_vocab_size() == config.vocab_size
    assert tokenizer.encode("def f(x):\n").ids == list(b"def f(x):\n")
    assert tokenizer.decode([*b"one", config.eos_token_id]) == "one"
    assert [tokenizer.token_to_id(name) for name in ("<bos>", "<eos>")] == [config.bos_token_id, config.eos_token_id]


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_text_comes_back(text: str) -> None:
    tokenizer = shipped()
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("text", ["<bos>", "a <eos> b", "  two  spaces ", "\r\n\t\0", "Ġdef", "é漢字🙂", "<unused>"])
def test_awkward_text_comes_back(text: str) -> None:
    tokenizer = shipped()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_tokenizer_is_what_the_script_writes(script: ModuleType) -> None:
    assert json.loads((TINY / "tokenizer.json").read_text()) == script.tokenizer_json()


def test_the_shipped_configuration_is_the_yaml() -> None:
    shipped_model, model = read_config_json(str(TINY)), builder.compose(["model=tiny"]).model
    assert list(differing_fields(shipped_model, model)) == []


def test_the_shipped_file_is_what_is_declared() -> None:
    declared: dict[str, tuple[str, tuple[int, ...]]] = {}
    for one in walk(official(builder.compose(["model=tiny", "spec=mtp"]))):
        if one.tensor.origin is Origin.CHECKPOINT:
            shape = one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape
            declared |= dict.fromkeys(one.official_names(), (one.tensor.dtype, shape))
    with safe_open(TINY / "model.safetensors", "pt") as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        assert {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in found.items()} == declared
        for name in found:
            tensor = file.get_tensor(name)
            assert tensor.isfinite().all(), name


def fill(stage: Stage, script: ModuleType) -> None:
    """Read the shipped weights by the official names that the script writes."""
    held = held_tensors(stage)
    with torch.no_grad(), safe_open(TINY / "model.safetensors", "pt") as file:
        for one in walk(stage.files):
            if one.tensor.origin is Origin.CHECKPOINT:
                parts = [file.get_tensor(name) for name in one.official_names()]
                held[one.path].copy_(torch.stack(parts) if one.tensor.stacked else parts[0])
    assert script.official_tensors(stage).keys() == set(safe_open(TINY / "model.safetensors", "pt").keys())


def test_the_shipped_weights_have_learned(script: ModuleType) -> None:
    """Files that were never trained on: far better than a uniform guess, and drafts that are often right."""
    _, stage = script.trainable_model()
    fill(stage, script)
    held = [content for name, content in script.stdlib_files() if script.is_held_out(name)]
    measured = cast("dict[str, float]", script.evaluate(stage, script.pieces(held, 259, 12)))
    assert measured["main"] < 3
    assert measured["draft_1"] < 4
    assert measured["accepted_1"] > 0.5


def test_what_is_written_is_what_was_read(script: ModuleType, tmp_path: Path) -> None:
    config, stage = script.trainable_model()
    fill(stage, script)
    script.export(config, stage, tmp_path)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / name).read_bytes() == (TINY / name).read_bytes(), name


def test_rounding_changes_what_is_stored_narrowly(script: ModuleType) -> None:
    _, stage = script.trainable_model("tiny", *SMALL)
    script.initialise(stage, 0)
    exact = {path: parameter.detach().clone() for path, parameter in stage.named_parameters()}
    script.round_as_stored(stage)
    changed = {path for path, parameter in stage.named_parameters() if not parameter.equal(exact[path])}
    assert {"embed.weight", "head.weight", "layers.1.ffn.experts.w1.weight"} <= changed
    assert not any(path.rsplit(".", 1)[-1].startswith("hc_") for path in changed)


def test_parameters_are_plain_modules(script: ModuleType) -> None:
    """What training adds to a model is hooks; its parts stay those of inference."""
    config, stage = script.trainable_model()
    served = builder.build(config)
    assert isinstance(stage, nn.Module)
    kept = {path for path in held_tensors(served) if not path.startswith("mtp_stash")}
    assert held_tensors(stage).keys() == kept
