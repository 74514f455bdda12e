"""A model from a ``config.json``: the official releases' spelling, and the one that transformers writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from builder.errors import ConfigError, Problem
from builder.schema.config_layers import Labels, layer_values, rotary_values
from builder.schema.fields import MISSING
from builder.schema.json_file import JsonNode, read_json_object, shown
from builder.schema.model import DSPARK_STAGES, FP8_BLOCK, ModelConfig, QuantizationConfig, model_problems

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_FACTORS = ("routed_scaling_factor", "swiglu_limit")

_FIXED: Mapping[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
}
"""What DeepSeek-V4 is by definition. A file may leave these out, not change them."""


def read_config_json(path: str, key: str = "model.config") -> ModelConfig:
    """The model that a ``config.json``, or a folder with one, describes. Raises one ConfigError with all problems.

    ``key`` is the setting that gave the path. The file is data: nothing in it is executed, unknown keys are ignored.
    """
    file = config_file(path, key)
    data = read_json_object(file, key)
    _refuse_other_formats(data, file, key)
    node = JsonNode(file=str(file), data=data, problems=[])
    labels: Labels = {}
    model = _model(node, labels)
    problems = node.problems + list(_own_problems(model, str(file), labels))
    if problems:
        raise ConfigError(problems)
    model.config = node.file
    return model


def config_file(path: str, key: str) -> Path:
    """The file that is meant: itself, or the ``config.json`` of a folder."""
    try:
        if path and Path(path).is_dir():
            return Path(path) / "config.json"
        if path and Path(path).exists():
            return Path(path)
    except OSError as error:
        raise ConfigError([Problem(key, path, f"cannot be read: {error.strerror}")]) from None
    reason = "there is no such file or folder"
    raise ConfigError([Problem(key, path or '""', reason, "give a config.json or the folder that holds it")])


def known_name(model: ModelConfig, shipped: Mapping[str, ModelConfig]) -> str | None:
    """The first shipped model that ``model`` equals in everything but its name and where it was read."""
    return next((name for name, other in shipped.items() if not any(differing_fields(model, other))), None)


def differing_fields(one: ModelConfig, other: ModelConfig) -> Iterator[str]:
    """Names of the fields in which two models differ; ``name`` and ``config`` are not of the model."""
    for field in dataclasses.fields(one):
        if field.name not in ("name", "config") and getattr(one, field.name) != getattr(other, field.name):
            yield field.name


def _refuse_other_formats(data: Mapping[str, object], file: Path, key: str) -> None:
    """Files of which nothing else is worth saying."""
    if "dim" in data and "n_layers" in data:
        reason = "is the inference code's own configuration (it has dim and n_layers)"
        raise ConfigError([Problem(key, file, reason, f"give {file.absolute().parent.parent / 'config.json'}")])
    kind = data.get("model_type")
    if kind not in (None, "deepseek_v4"):
        where = f"{file}: model_type"
        raise ConfigError([Problem(where, shown(kind), "is another model", 'only "deepseek_v4" can be built')])


def _model(node: JsonNode, labels: Labels) -> ModelConfig:
    _check_fixed(node)
    values: dict[str, Any] = {name: node.whole(name) for name in _SIZES}
    values.update({name: node.real(name) for name in _FACTORS})
    values.update(
        hc_sinkhorn_iters=node.whole("hc_sinkhorn_iters", 20),
        hc_eps=node.real("hc_eps", 1e-6),
        rms_norm_eps=node.real("rms_norm_eps", 1e-6),
        bos_token_id=_token(node, "bos_token_id", 0),
        eos_token_id=_token(node, "eos_token_id", 1),
        more_eos_token_ids=_more_ends(node),
    )
    values.update(layer_values(node, values["num_hidden_layers"], labels))
    values.update(rotary_values(node, values["head_dim"], labels))
    values.update(_dspark(node))
    values["num_nextn_predict_layers"] = _drafter_layers(node, values)
    values["torch_dtype"] = _dtype(node, labels)
    values["quantization_config"] = _quantization(node)
    return ModelConfig(name="custom", **values)


def _own_problems(model: ModelConfig, file: str, labels: Labels) -> Iterator[Problem]:
    """What ``model_problems`` finds, under the file's names; a ``MISSING`` value has its problem already."""
    prefix = "model"
    unread = {f"{prefix}.{field.name}" for field in dataclasses.fields(model) if _unread(getattr(model, field.name))}
    for problem in model_problems(model, prefix):
        if problem.key not in unread:
            name = problem.key.removeprefix(f"{prefix}.")
            value = None if problem.value is None else shown(problem.value)
            yield Problem(f"{file}: {labels.get(name, name)}", value, problem.reason, problem.works)


def _unread(value: object) -> bool:
    return isinstance(value, str) and value == MISSING


def _check_fixed(node: JsonNode) -> None:
    for name, wanted in _FIXED.items():
        value = node.get(name)
        if value is not None and (type(value) is not type(wanted) or value != wanted):
            node.refuse(name, value, "cannot be built", f"only {shown(wanted)} can")


def _token(node: JsonNode, name: str, default: int) -> Any:
    """A token number; of a list (several ends of a text) the first."""
    value = node.get(name)
    if name not in node.data or type(value) is int:
        return node.whole(name, default)
    if value is None:
        return None
    listed = cast("list[object]", value) if isinstance(value, list) else []
    if listed and type(listed[0]) is int:
        return listed[0]
    return node.refuse(name, cast("object", value), "must be a token number or a list of them")


def _more_ends(node: JsonNode) -> list[int]:
    """The tokens after the first of a list of ends."""
    value = node.get("eos_token_id")
    listed = cast("list[Any]", value)[1:] if isinstance(value, list) else []
    if all(type(token) is int and token >= 0 for token in listed):
        return listed
    return node.refuse("eos_token_id", cast("object", value), "must be a token number or a list of them")


def _dspark(node: JsonNode) -> dict[str, Any]:
    names = ("dspark_block_size", "dspark_noise_token_id", "dspark_markov_rank")
    values: dict[str, Any] = {name: node.whole(name, None) for name in names}
    targets = node.items("dspark_target_layer_ids")
    if targets is None:
        targets = None if node.get("dspark_target_layer_ids") is None else MISSING
    elif any(type(layer) is not int for layer in targets):
        targets = node.refuse("dspark_target_layer_ids", targets, "must hold whole numbers")
    return {**values, "dspark_target_layer_ids": targets}


def _drafter_layers(node: JsonNode, values: Mapping[str, Any]) -> Any:
    """0 where only three entries of compress_ratios tell of a DSpark drafter: its ``mtp.*`` are no MTP block."""
    ratios, layers = node.get("compress_ratios"), values["num_hidden_layers"]
    length = len(cast("list[object]", ratios)) if isinstance(ratios, list) else 0
    stages = isinstance(layers, int) and length == layers + DSPARK_STAGES
    described = any(values[name] is not None for name in values if name.startswith("dspark_"))
    return 0 if stages and not described else node.whole("num_nextn_predict_layers", 0)


def _dtype(node: JsonNode, labels: Labels) -> Any:
    """torch_dtype, or dtype as transformers 5 writes it."""
    choices = ("bfloat16", "float16", "float32")
    old, new = node.word("torch_dtype", choices, None), node.word("dtype", choices, None)
    if old and new and MISSING not in (old, new) and old != new:
        return node.refuse("dtype", new, f"differs from torch_dtype={shown(old)}", "leave one of the two out")
    if not old and new:
        labels["torch_dtype"] = "dtype"
    return old or new or "bfloat16"


_MIXED_METHODS = ("modelopt", "modelopt_fp4", "modelopt_mixed", "nvfp4")


def _quantization(node: JsonNode) -> Any:
    """None where the file has none: the weights are then plain, whatever a leftover expert_dtype says."""
    child = node.child("quantization_config")
    if child is None:
        return None if node.get("quantization_config") is None else MISSING
    before = len(node.problems)
    method = child.get("quant_method")
    if method in _MIXED_METHODS:
        reason = (
            "is no storage of the official releases: in the NVFP4 copies experts are NVFP4, attention stays FP8 and "
            "the MTP block's experts MXFP4, module by module (TensorRT-LLM #16196)"
        )
        child.refuse("quant_method", method, reason, "use the official files: model=v4_pro, or fp8")
    else:
        child.word("quant_method", ("fp8",))
    for name, only in (("fmt", "e4m3"), ("scale_fmt", "ue8m0"), ("activation_scheme", "dynamic")):
        child.word(name, (only,), only)
    block = child.items("weight_block_size")
    if block is not None and block != [FP8_BLOCK, FP8_BLOCK]:
        reason = f"DeepSeek-V4 stores FP8 in blocks of {FP8_BLOCK} x {FP8_BLOCK}"
        child.refuse("weight_block_size", block, reason, f"use [{FP8_BLOCK}, {FP8_BLOCK}]")
    experts = _expert_dtype(node, child)
    if len(node.problems) > before:
        return MISSING
    return QuantizationConfig(expert_dtype=experts, scale_dtype="float32" if experts == "fp8" else "e8m0")


def _expert_dtype(node: JsonNode, child: JsonNode) -> Any:
    """Beside quantization_config in official files, within it as transformers writes them; first files had none."""
    choices = ("fp4", "fp8")
    outer, inner = node.word("expert_dtype", choices, None), child.word("expert_dtype", choices, None)
    if outer and inner and MISSING not in (outer, inner) and outer != inner:
        return child.refuse("expert_dtype", inner, f"differs from expert_dtype={shown(outer)} outside", "leave one out")
    return outer or inner or "fp4"
