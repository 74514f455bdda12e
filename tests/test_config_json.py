"""Models read from config.json: equal to the shipped ones, every refusal with its text, nothing but ConfigError."""

from __future__ import annotations

import copy
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from builder.errors import ConfigError
from builder.schema.config_json import differing_fields, known_name, read_config_json
from builder.schema.json_file import MOST_BYTES
from builder.schema.model import ModelConfig, QuantizationConfig, RopeScaling

CONFIGS = Path(__file__).parent / "data" / "configs"
CONF = Path(__file__).parents[1] / "conf"
SHIPPED = {
    "v4_pro": "DeepSeek-V4-Pro",
    "v4_flash": "DeepSeek-V4-Flash",
    "v4_pro_0813": "DeepSeek-V4-Pro-0813",
    "v4_flash_0731": "DeepSeek-V4-Flash-0731",
}
TYPES = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
Json = dict[str, Any]


def official(name: str = "DeepSeek-V4-Flash") -> Json:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def shipped(name: str) -> ModelConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(f"model/{name}").model
    found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), node))
    assert isinstance(found, ModelConfig)
    return found


def written_by_transformers() -> Json:
    """tiny-flash in the spelling of transformers 5.24."""
    data = official("tiny-flash")
    for name in ("compress_ratios", "rope_scaling", "torch_dtype", "num_hash_layers", "qk_rope_head_dim"):
        del data[name]
    part: Json = {"partial_rotary_factor": 0.5, "rope_type": "default", "rope_theta": 10000}
    yarn = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    data["rope_parameters"] = {"main": dict(part), "compress": {**part, **yarn, "rope_theta": 4e4}}
    data["rope_parameters"]["compress"]["attention_factor"] = 1.0
    swa, csa, hca = TYPES
    return data | {
        "layer_types": [swa, swa, csa, hca, csa, hca],
        "mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 4,
        "compress_rates": {csa: 4, hca: 128},
        "partial_rotary_factor": 0.5,
        "dtype": "float32",
    }


def write(folder: Path, data: object) -> Path:
    (folder / "config.json").write_text(json.dumps(data))
    return folder / "config.json"


def read(folder: Path, data: object) -> ModelConfig:
    return read_config_json(str(write(folder, data)))


def refusals(folder: Path, data: object) -> list[str]:
    """The lines of the refusal, without the path of the file."""
    path = write(folder, data)
    with pytest.raises(ConfigError) as caught:
        read_config_json(str(path))
    return str(caught.value).replace(f"{path}: ", "").splitlines()


@pytest.mark.parametrize(("name", "file"), SHIPPED.items())
def test_an_official_file_is_the_shipped_model(name: str, file: str) -> None:
    path = CONFIGS / f"{file}.json"
    model = read_config_json(str(path))
    assert (model.name, model.config) == ("custom", str(path))
    assert list(differing_fields(model, shipped(name))) == []
    assert known_name(model, {other: shipped(other) for other in SHIPPED}) == name


@pytest.mark.parametrize(("name", "file"), [("v4_pro_base", "DeepSeek-V4-Pro"), ("v4_flash_base", "DeepSeek-V4-Flash")])
def test_fp8_experts_are_the_base_release(tmp_path: Path, name: str, file: str) -> None:
    model = read(tmp_path, official(file) | {"expert_dtype": "fp8"})
    assert known_name(model, {name: shipped(name)}) == name


def test_an_unknown_model_has_no_name(tmp_path: Path) -> None:
    model = read(tmp_path, official() | {"index_topk": 1024})
    assert list(differing_fields(model, shipped("v4_flash"))) == ["index_topk"]
    assert known_name(model, {"v4_flash": shipped("v4_flash")}) is None


def test_a_folder_stands_for_its_config_json(tmp_path: Path) -> None:
    path = write(tmp_path, official())
    assert read_config_json(str(tmp_path)) == read_config_json(str(path))


def test_the_first_release_had_no_expert_dtype(tmp_path: Path) -> None:
    data = official()
    del data["expert_dtype"]
    assert read(tmp_path, data).quantization_config == QuantizationConfig(expert_dtype="fp4", scale_dtype="e8m0")


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"torch_dtype": None, "dtype": "float16"}, "float16"),
        ({"torch_dtype": "float32", "dtype": "float32"}, "float32"),
        ({"torch_dtype": None}, "bfloat16"),
    ],
)
def test_without_quantization_config_weights_are_plain(tmp_path: Path, change: Json, dtype: str) -> None:
    model = read(tmp_path, official() | {"quantization_config": None} | change)
    assert (model.quantization_config, model.torch_dtype) == (None, dtype)


def test_absent_fields_that_change_nothing_have_the_release_s_values(tmp_path: Path) -> None:
    data = official()
    optional = (
        *("num_key_value_heads", "n_shared_experts", "attention_bias", "tie_word_embeddings", "hidden_act"),
        *("scoring_func", "topk_method", "norm_topk_prob", "hc_eps", "rms_norm_eps", "hc_sinkhorn_iters"),
        *("rope_theta", "compress_rope_theta", "bos_token_id", "eos_token_id", "model_type", "architectures"),
    )
    for name in optional:
        del data[name]
    assert read(tmp_path, data) == read(tmp_path, official())


@pytest.mark.parametrize(
    ("extra", "layers", "dspark", "has_mtp"),
    [([], 1, False, True), ([0], 1, False, True), ([0], 0, False, False), ([0, 0, 0], 1, False, False)],
)
def test_entries_of_the_drafter(tmp_path: Path, extra: list[int], layers: int, dspark: bool, has_mtp: bool) -> None:
    """Three entries without dspark_* fields: blocks that are no MTP, and too little to build them."""
    ratios = official()["compress_ratios"][:43] + extra
    model = read(tmp_path, official() | {"compress_ratios": ratios, "num_nextn_predict_layers": layers})
    assert (len(model.layer_types), model.is_dspark, model.has_mtp) == (43, dspark, has_mtp)


def test_the_spelling_of_transformers(tmp_path: Path) -> None:
    model = read(tmp_path, written_by_transformers())
    assert list(differing_fields(model, read_config_json(str(CONFIGS / "tiny-flash.json")))) == []


def test_both_spellings_may_stand_together(tmp_path: Path) -> None:
    model = read(tmp_path, official("tiny-flash") | written_by_transformers())
    assert list(differing_fields(model, read_config_json(str(CONFIGS / "tiny-flash.json")))) == []


def test_other_rates_flat_rope_and_a_list_of_ends(tmp_path: Path) -> None:
    data = written_by_transformers() | {
        "compress_rates": {TYPES[1]: 8},
        "compress_rate_hca": 64,
        "rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 9, "beta_slow": 2},
        "eos_token_id": [7, 8],
        "bos_token_id": None,
    }
    model = read(tmp_path, data)
    assert (model.csa_ratio, model.hca_ratio, model.eos_token_id, model.bos_token_id) == (8, 64, 7, None)
    scaling = RopeScaling(type="yarn", factor=2, original_max_position_embeddings=9, beta_fast=32, beta_slow=2)
    assert (model.rope_scaling, model.qk_rope_head_dim, model.compress_rope_theta) == (scaling, 16, 4e4)


@pytest.mark.parametrize("scaling", [None, {}, {"type": "default"}, {"rope_type": "default", "factor": 4}])
def test_no_rope_scaling(tmp_path: Path, scaling: object) -> None:
    assert read(tmp_path, official() | {"rope_scaling": scaling}).rope_scaling is None


def test_unknown_keys_are_ignored_and_nothing_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    extra = {
        "_target_": "pathlib.Path.touch",
        "_args_": [str(trap)],
        "auto_map": {"AutoConfig": "evil.Config"},
        "trust_remote_code": True,
        "rope_scaling": {**official()["rope_scaling"], "_target_": "os.abort"},
        "${oc.env:HOME}": "${oc.env:HOME}",
    }
    assert read(tmp_path, official() | extra) == read(tmp_path, official())
    assert not trap.exists()


def changed(**values: object) -> Callable[[Json], Json]:
    return lambda data: data | values


def without(*names: str) -> Callable[[Json], Json]:
    return lambda data: {name: value for name, value in data.items() if name not in names}


def within(name: str, **values: object) -> Callable[[Json], Json]:
    return lambda data: data | {name: data[name] | values}


def entry(name: str, index: int, value: object) -> Callable[[Json], Json]:
    def change(data: Json) -> Json:
        data[name][index] = value
        return data

    return change


R44 = official()["compress_ratios"]
LENGTHS = "give 43, 44 (with an MTP block) or 46 (with 3 DSpark stages)"

OFFICIAL_REFUSALS = [
    (without("hidden_size"), "hidden_size: is missing; give a whole number"),
    (changed(hidden_size=None), "hidden_size: is missing; give a whole number"),
    (without("num_hash_layers"), "num_hash_layers: is missing; give a whole number"),
    (without("swiglu_limit"), "swiglu_limit: is missing; give a number"),
    (without("max_position_embeddings"), "max_position_embeddings: is missing; give a whole number"),
    (without("qk_rope_head_dim"), "qk_rope_head_dim: is missing; give it, or partial_rotary_factor"),
    (changed(hidden_size="7168"), 'hidden_size="7168": must be a whole number'),
    (changed(hidden_size=True), "hidden_size=true: must be a whole number"),
    (changed(hidden_size=4096.0), "hidden_size=4096.0: must be a whole number"),
    (changed(vocab_size=[1] * 99), f"vocab_size=[{'1, ' * 18}1,...: must be a whole number"),
    (changed(swiglu_limit="10"), 'swiglu_limit="10": must be a number'),
    (changed(hidden_size=-1), "hidden_size=-1: is out of range; use at least 1 and at most 16,777,216"),
    (changed(hc_eps=-1e-6), "hc_eps=-1e-06: is out of range; use at least 0 and at most 1"),
    (
        changed(num_hidden_layers=10**9),
        "num_hidden_layers=1000000000: is out of range; use at least 1 and at most 10,000",
    ),
    (changed(num_nextn_predict_layers=2), "num_nextn_predict_layers=2: is out of range; use at least 0 and at most 1"),
    (changed(num_experts_per_tok=300), "num_experts_per_tok=300: more than n_routed_experts=256; use 1 to 256"),
    (changed(qk_rope_head_dim=63), "qk_rope_head_dim=63: rotary works on pairs; use an even number"),
    (changed(o_groups=3), "o_groups=3: does not divide num_attention_heads=64; use one of 1, 2, 4, 8, 16, 32, 64"),
    (changed(eos_token_id="1"), 'eos_token_id="1": must be a token number or a list of them'),
    (changed(eos_token_id=[]), "eos_token_id=[]: must be a token number or a list of them"),
    (changed(num_key_value_heads=8), "num_key_value_heads=8: cannot be built; only 1 can"),
    (changed(num_key_value_heads=True), "num_key_value_heads=true: cannot be built; only 1 can"),
    (changed(n_shared_experts=2), "n_shared_experts=2: cannot be built; only 1 can"),
    (changed(attention_bias=True), "attention_bias=true: cannot be built; only false can"),
    (changed(mlp_bias=True), "mlp_bias=true: cannot be built; only false can"),
    (changed(tie_word_embeddings=True), "tie_word_embeddings=true: cannot be built; only false can"),
    (changed(hidden_act="gelu"), 'hidden_act="gelu": cannot be built; only "silu" can'),
    (changed(scoring_func="sigmoid"), 'scoring_func="sigmoid": cannot be built; only "sqrtsoftplus" can'),
    (changed(topk_method="greedy"), 'topk_method="greedy": cannot be built; only "noaux_tc" can'),
    (changed(norm_topk_prob=False), "norm_topk_prob=false: cannot be built; only true can"),
    (changed(model_type="deepseek_v3"), 'model_type="deepseek_v3": is another model; only "deepseek_v4" can be built'),
    (
        without("compress_ratios"),
        "compress_ratios: is missing, and so is layer_types; the order that transformers assumes then is wrong for "
        "V4-Pro; give one of the two, with an entry for each layer",
    ),
    (changed(compress_ratios=R44[:42]), f"compress_ratios: has 42 entries for num_hidden_layers=43; {LENGTHS}"),
    (changed(compress_ratios=[*R44, 0]), f"compress_ratios: has 45 entries for num_hidden_layers=43; {LENGTHS}"),
    (changed(compress_ratios=4), "compress_ratios=4: must be a list"),
    (entry("compress_ratios", 3, 64), "compress_ratios[3]=64: is not known; use 0, 4 or 128"),
    (entry("compress_ratios", 3, True), "compress_ratios[3]=true: is not known; use 0, 4 or 128"),
    (changed(compress_ratios=[2] * 43), "compress_ratios[0]=2: is not known, nor are 42 more; use 0, 4 or 128"),
    (
        entry("compress_ratios", 43, 4),
        "compress_ratios[43]=4: is the drafter's (the layers are 0 to 42), and its blocks have a sliding window only; "
        "use 0",
    ),
    (changed(torch_dtype="int8"), 'torch_dtype="int8": is not known; use one of bfloat16, float16, float32'),
    (changed(dtype="float32"), 'dtype="float32": differs from torch_dtype="bfloat16"; leave one of the two out'),
    (
        changed(quantization_config="fp8"),
        'quantization_config="fp8": must be an object, {"…": …}',
    ),
    (
        within("quantization_config", quant_method="awq"),
        'quantization_config.quant_method="awq": is not known; use fp8',
    ),
    (
        within("quantization_config", scale_fmt="float"),
        'quantization_config.scale_fmt="float": is not known; use ue8m0',
    ),
    (
        within("quantization_config", weight_block_size=[64, 64]),
        "quantization_config.weight_block_size=[64, 64]: DeepSeek-V4 stores FP8 in blocks of 128 x 128; "
        "use [128, 128]",
    ),
    (changed(expert_dtype="int4"), 'expert_dtype="int4": is not known; use one of fp4, fp8'),
    (
        within("quantization_config", expert_dtype="fp8"),
        'quantization_config.expert_dtype="fp8": differs from expert_dtype="fp4" outside; leave one out',
    ),
    (changed(rope_scaling="yarn"), 'rope_scaling="yarn": must be an object, {"…": …}'),
    (within("rope_scaling", type="linear"), 'rope_scaling.type="linear": is not known; use one of yarn, default'),
    (
        within("rope_scaling", type=None),
        "rope_scaling.type: is missing, and there is a factor; use yarn, or default for none",
    ),
    (within("rope_scaling", factor=None), "rope_scaling.factor: is missing; give a number"),
    (within("rope_scaling", factor=-2), "rope_scaling.factor=-2.0: is out of range; use more than 0"),
    (
        within("rope_scaling", attention_factor=1.2),
        "rope_scaling.attention_factor=1.2: is not how DeepSeek-V4 rotates; use 1, or leave it out",
    ),
    (
        changed(rope_parameters={"rope_type": "default"}),
        "rope_scaling: differs from rope_parameters; leave one of the two out",
    ),
    (
        changed(partial_rotary_factor=0.5),
        "partial_rotary_factor=0.5: is 256 of head_dim=512, and qk_rope_head_dim is 64; leave one of the two out",
    ),
    (changed(moe_intermediate_size=2064), "moe_intermediate_size=2064: FP4 experts need a multiple of 32; "
     "use 2048 or 2080"),
    (
        changed(dspark_block_size=5, dspark_noise_token_id=1, dspark_markov_rank=2),
        "dspark_target_layer_ids: is missing, and the other dspark_* fields are there; give dspark_target_layer_ids",
    ),
    (
        changed(dspark_block_size=5, dspark_noise_token_id=1, dspark_markov_rank=2, dspark_target_layer_ids=[43]),
        "dspark_target_layer_ids=[43]: must be rising numbers of layers 0 to 42; for example [40]",
    ),
    (
        changed(dspark_block_size=5, dspark_noise_token_id=129280, dspark_markov_rank=2, dspark_target_layer_ids=[1]),
        "dspark_noise_token_id=129280: is no token of vocab_size=129280; use 0 to 129279",
    ),
    (
        changed(dspark_block_size=5, dspark_noise_token_id=1, dspark_markov_rank=2, dspark_target_layer_ids=["1"]),
        'dspark_target_layer_ids=["1"]: must hold whole numbers',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), OFFICIAL_REFUSALS, ids=[text[:40] for _, text in OFFICIAL_REFUSALS])
def test_refusals_of_official_files(tmp_path: Path, change: Callable[[Json], Json], text: str) -> None:
    assert refusals(tmp_path, change(official())) == [text]


ROTARY = written_by_transformers()["rope_parameters"]

TRANSFORMERS_REFUSALS = [
    (
        without("layer_types"),
        "compress_ratios: is missing, and so is layer_types; the order that transformers assumes then is wrong for "
        "V4-Pro; give one of the two, with an entry for each layer",
    ),
    (changed(layer_types=TYPES), "layer_types: has 3 entries for num_hidden_layers=6; give 6"),
    (
        entry("layer_types", 5, "full_attention"),
        f'layer_types[5]="full_attention": is not known; use one of {", ".join(TYPES)}',
    ),
    (
        changed(compress_ratios=[0, 0, 4, 4, 4, 128]),
        "layer_types[3]: says hca for a layer that is csa in compress_ratios; leave one of the two out",
    ),
    (
        changed(compress_ratios=[0, 0, 4, 128, 4, 128], compress_rates={TYPES[1]: 8}),
        f"compress_rates.{TYPES[1]}=8: compress_ratios is there too, and means 4; use 4",
    ),
    (
        changed(compress_rates={TYPES[2]: 0}),
        f"compress_rates.{TYPES[2]}=0: is out of range; use at least 2 and at most 1,048,576",
    ),
    (changed(compress_rate_csa="4"), 'compress_rate_csa="4": must be a whole number'),
    (changed(compress_rates=[4, 128]), 'compress_rates=[4, 128]: must be an object, {"…": …}'),
    (without("mlp_layer_types"), "num_hash_layers: is missing; give a whole number"),
    (
        entry("mlp_layer_types", 4, "hash_moe"),
        'mlp_layer_types[4]="hash_moe": follows a layer of moe; hash_moe layers come first',
    ),
    (entry("mlp_layer_types", 4, "dense"), 'mlp_layer_types[4]="dense": is not known; use hash_moe or moe'),
    (
        changed(num_hash_layers=3),
        "mlp_layer_types: starts with 2 hash_moe, and num_hash_layers=3; leave one of the two out",
    ),
    (
        changed(rope_parameters={"main": ROTARY["main"]}),
        "rope_parameters.compress: is missing; give rope_parameters both main and compress",
    ),
    (
        changed(rope_parameters=ROTARY | {"main": ROTARY["main"] | {"rope_type": "yarn"}}),
        'rope_parameters.main.rope_type="yarn": is not known; use default',
    ),
    (
        changed(rope_parameters=ROTARY | {"compress": ROTARY["compress"] | {"attention_factor": 1.3}}),
        "rope_parameters.compress.attention_factor=1.3: is not how DeepSeek-V4 rotates; use 1, or leave it out",
    ),
    (
        changed(rope_parameters=ROTARY | {"compress": ROTARY["compress"] | {"beta_fast": -1}}),
        "rope_parameters.compress.beta_fast=-1.0: is out of range; use more than 0",
    ),
    (
        changed(rope_parameters=ROTARY | {"main": ROTARY["main"] | {"rope_theta": 0}}),
        "rope_parameters.main.rope_theta=0.0: is out of range; use more than 0",
    ),
    (
        changed(rope_parameters=ROTARY | {"compress": ROTARY["compress"] | {"partial_rotary_factor": 0.25}}),
        "rope_parameters.compress.partial_rotary_factor=0.25: is 8 of head_dim=32, and qk_rope_head_dim is 16; "
        "leave one of the two out",
    ),
    (changed(partial_rotary_factor=0.51), "partial_rotary_factor=0.51: is 16.32 of head_dim=32, no whole number; "
     "use 16/32"),
    (changed(partial_rotary_factor=2), "partial_rotary_factor=2.0: is out of range; use more than 0 and at most 1"),
    (changed(dtype="float64"), 'dtype="float64": is not known; did you mean float16? '
     "use one of bfloat16, float16, float32"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), TRANSFORMERS_REFUSALS, ids=[t[:40] for _, t in TRANSFORMERS_REFUSALS])
def test_refusals_of_files_of_transformers(tmp_path: Path, change: Callable[[Json], Json], text: str) -> None:
    assert refusals(tmp_path, change(written_by_transformers())) == [text]


def test_all_problems_come_together(tmp_path: Path) -> None:
    data = official() | {"hidden_size": -1, "vocab_size": "x", "hidden_act": "gelu", "rope_theta": 0}
    data = within("rope_scaling", factor="f")(without("head_dim")(data))
    assert refusals(tmp_path, entry("compress_ratios", 0, 1)(data)) == [
        'hidden_act="gelu": cannot be built; only "silu" can',
        'vocab_size="x": must be a whole number',
        "head_dim: is missing; give a whole number",
        "compress_ratios[0]=1: is not known; use 0, 4 or 128",
        'rope_scaling.factor="f": must be a number',
        "hidden_size=-1: is out of range; use at least 1 and at most 16,777,216",
        "rope_theta=0.0: is out of range; use more than 0",
    ]


def test_the_inference_code_s_own_file(tmp_path: Path) -> None:
    (tmp_path / "inference").mkdir()
    path = write(tmp_path / "inference", {"dim": 4096, "n_layers": 43, "dtype": "fp8"})
    with pytest.raises(ConfigError) as caught:
        read_config_json(str(path))
    reason = "is the inference code's own configuration (it has dim and n_layers)"
    assert str(caught.value) == f"model.config={path}: {reason}; give {tmp_path / 'config.json'}"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not JSON that can be read: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": 1', "is not JSON that can be read: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        (b'{"a": 1, "b": 2, "a": 3}', 'is not JSON that can be read: the key "a" is there twice'),
        (b'{"a": {"b": 1, "b": 1}}', 'is not JSON that can be read: the key "b" is there twice'),
        (b'{"a": NaN}', "is not JSON that can be read: NaN is no number"),
        (b'{"a": -Infinity}', "is not JSON that can be read: -Infinity is no number"),
        (b'{"a": 1e999}', "is not JSON that can be read: 1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", f"is not JSON that can be read: {'9' * 40}… is too large a number"),
        (b"[" * 200_000, "is not JSON that can be read: nested too deep"),
        (b"[1, 2]", 'holds no JSON object; it must look like {"hidden_size": …}'),
        (b'{"a": "\xff"}', "is not UTF-8 text, from byte 7 on"),
        (b" " * (MOST_BYTES + 1), "is larger than 67,108,864 bytes; give a config.json, not the weights"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_files_that_are_no_json_object(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config_json(str(path), "spec.checkpoint")
    assert str(caught.value) == f"spec.checkpoint={path}: {text}"


def test_paths_without_a_file(tmp_path: Path) -> None:
    where = "give a config.json or the folder that holds it"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    cases = {
        str(tmp_path / "no"): f"{tmp_path / 'no'}: there is no such file or folder; {where}",
        str(tmp_path): f"{tmp_path / 'config.json'}: there is no such file",
        "": f'"": there is no such file or folder; {where}',
        str(fifo): f"{fifo}: is no regular file",
        "a" * 5000: f"{'a' * 5000}: cannot be read: File name too long",
    }
    for path, text in cases.items():
        with pytest.raises(ConfigError) as caught:
            read_config_json(path)
        assert str(caught.value) == f"model.config={text}"


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**63, 10**9, 10**30, 0.5, -0.0, 1e300, 4096.0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.integers(-2, 200), max_size=8),
    st.dictionaries(st.sampled_from(["type", "factor", "main", "compress", "quant_method"]), st.integers(), max_size=3),
)
STARTS = [official(), official("DeepSeek-V4-Pro-0813"), official("tiny-fp4"), written_by_transformers()]
DROPPED = object()


def mutated(draw: st.DrawFn) -> Json:
    data = copy.deepcopy(draw(st.sampled_from(STARTS)))
    for _ in range(draw(st.integers(1, 4))):
        node: Any = data
        while True:
            name = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not (isinstance(node[name], dict | list) and node[name] and draw(st.booleans())):
                break
            node = node[name]
        value = draw(st.one_of(st.just(DROPPED), ODD))
        if value is DROPPED:
            del node[name]
        elif isinstance(node[name], int | float) and draw(st.booleans()):
            node[name] = -node[name]
        else:
            node[name] = value
        if not data:
            break
    return data


def outcome(path: Path) -> ModelConfig | ConfigError:
    try:
        return read_config_json(str(path))
    except ConfigError as error:
        return error


@settings(max_examples=300, deadline=None)
@given(st.composite(mutated)())
def test_a_spoilt_file_is_read_or_refused_fast(data: Json) -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), data)
        found = outcome(path)
    if isinstance(found, ModelConfig):
        assert len(found.layer_types) == found.num_hidden_layers
    else:
        assert found.problems
        assert all(str(path) in str(problem) for problem in found.problems)
        assert len({problem.key for problem in found.problems}) == len(found.problems)
    assert time.perf_counter() - start < 2


def saved_by_transformers(folder: Path, **changes: Any) -> Path:
    from transformers import DeepseekV4Config

    data = official("tiny-flash") | changes
    names = ("architectures", "model_type", "torch_dtype")
    fields = {name: value for name, value in data.items() if name not in names}
    DeepseekV4Config(**fields).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_what_transformers_saves_is_the_same_model(tmp_path: Path) -> None:
    model = read_config_json(str(saved_by_transformers(tmp_path, dtype="float32")))
    assert list(differing_fields(model, read_config_json(str(CONFIGS / "tiny-flash.json")))) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_what_transformers_reads_and_saves_is_the_same_model(tmp_path: Path, file: Path) -> None:
    from transformers import DeepseekV4Config

    DeepseekV4Config.from_pretrained(file).save_pretrained(tmp_path)
    assert "compress_ratios" not in json.loads((tmp_path / "config.json").read_text())
    assert list(differing_fields(read_config_json(str(tmp_path)), read_config_json(str(file)))) == []


@pytest.mark.filterwarnings("ignore")
def test_transformers_defaults_are_written_out(tmp_path: Path) -> None:
    """Nothing that this reader requires is left out by save_pretrained because it equals a default."""
    from transformers import DeepseekV4Config

    DeepseekV4Config().save_pretrained(tmp_path)
    model = read_config_json(str(tmp_path))
    assert (model.hidden_size, model.torch_dtype, model.rope_scaling) == (4096, "bfloat16", None)
    assert model.layer_types[:3] == ["hca", "hca", "hca"]
