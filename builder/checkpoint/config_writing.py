"""The ``config.json`` that goes with written weights: the official spelling, or the one that transformers writes."""

from __future__ import annotations

from collections.abc import Mapping

from builder.schema.model import CSA_RATIO, HCA_RATIO, ModelConfig

_TYPE_OF_KIND = {
    "swa": "sliding_attention",
    "csa": "compressed_sparse_attention",
    "hca": "heavily_compressed_attention",
}
_COPIED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "routed_scaling_factor",
    "swiglu_limit",
    "rope_theta",
    "compress_rope_theta",
    "bos_token_id",
    "eos_token_id",
)
_FIXED: Mapping[str, object] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "norm_topk_prob": True,
    "num_key_value_heads": 1,
    "scoring_func": "sqrtsoftplus",
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "use_cache": True,
}
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")
"""What the source's own file may say better: several ends of a text, say."""

_QUANTIZATION = ("quantization_config", "expert_dtype")
_DTYPES = ("torch_dtype", "dtype")


def official_config(
    model: ModelConfig, source: Mapping[str, object], weights: str, *, drafter_blocks: int
) -> dict[str, object]:
    """The file for official names. weights: native or the dtype of plain ones; drafter_blocks: ``mtp.*`` written."""
    if "compress_ratios" in source:
        written = dict(source)
    else:
        written = _common(model, source)
        written |= {"num_hash_layers": model.num_hash_layers, "torch_dtype": model.torch_dtype}
        written |= _official_layers(model, drafter_blocks)
        if model.rope_scaling is not None:
            written["rope_scaling"] = _yarn(model) | {"type": "yarn"}
    if drafter_blocks == 0:
        written["num_nextn_predict_layers"] = 0
        ratios = written.get("compress_ratios")
        if isinstance(ratios, list):
            written["compress_ratios"] = ratios[: model.num_hidden_layers]
    if weights != "native":
        written = {key: value for key, value in written.items() if key not in (*_QUANTIZATION, *_DTYPES)}
        written["torch_dtype"] = weights
    return written


def transformers_config(
    model: ModelConfig, source: Mapping[str, object], weights: str, *, drafter_blocks: int
) -> dict[str, object]:
    """The file for the layouts of transformers, as version 5.24 spells it."""
    rates = {_TYPE_OF_KIND["csa"]: model.csa_ratio, _TYPE_OF_KIND["hca"]: model.hca_ratio}
    hashed = model.num_hash_layers
    share = model.qk_rope_head_dim / model.head_dim
    main: dict[str, object] = {"rope_type": "default", "rope_theta": model.rope_theta, "partial_rotary_factor": share}
    compress: dict[str, object] = {**main, "rope_theta": model.compress_rope_theta}
    if model.rope_scaling is not None:
        compress |= _yarn(model) | {"rope_type": "yarn", "attention_factor": 1.0}
    return _common(model, source) | {
        "dtype": model.torch_dtype if weights == "native" else weights,
        "num_nextn_predict_layers": min(drafter_blocks, 1),
        "layer_types": [_TYPE_OF_KIND[kind] for kind in model.layer_types],
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (model.num_hidden_layers - hashed),
        "compress_rates": rates,
        "partial_rotary_factor": share,
        "rope_parameters": {"main": main, "compress": compress},
    }


def _common(model: ModelConfig, source: Mapping[str, object]) -> dict[str, object]:
    written = dict(_FIXED) | {name: getattr(model, name) for name in _COPIED}
    written["num_nextn_predict_layers"] = model.num_nextn_predict_layers
    if model.is_dspark:
        names = ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank")
        written |= {name: getattr(model, name) for name in names}
    return written | {name: source[name] for name in _KEPT if name in source}


def _official_layers(model: ModelConfig, drafter_blocks: int) -> dict[str, object]:
    if (model.csa_ratio, model.hca_ratio) == (CSA_RATIO, HCA_RATIO):
        return {"compress_ratios": [model.ratio(kind) for kind in model.layer_types] + [0] * drafter_blocks}
    rates = {_TYPE_OF_KIND["csa"]: model.csa_ratio, _TYPE_OF_KIND["hca"]: model.hca_ratio}
    return {"layer_types": [_TYPE_OF_KIND[kind] for kind in model.layer_types], "compress_rates": rates}


def _yarn(model: ModelConfig) -> dict[str, object]:
    scaling = model.rope_scaling
    assert scaling is not None, "asked for only where there is YaRN"
    return {
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
    }
