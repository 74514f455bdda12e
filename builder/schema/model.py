"""The model group: the fields of an official ``config.json``, under their official names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import Problem
from builder.schema.fields import field_problems, setting

SWA, CSA, HCA = "swa", "csa", "hca"
LAYER_KINDS: dict[str, str] = {
    SWA: "builder.components.swa.spec:SlidingWindowAttentionSpec",
    CSA: "builder.components.csa.spec:CompressedSparseAttentionSpec",
    HCA: "builder.components.hca.spec:HeavilyCompressedAttentionSpec",
}
"""The registration of an attention kind: its name in ``layer_types``, and the declaration of what it is made of."""

CSA_RATIO, HCA_RATIO = 4, 128
KIND_OF_RATIO = {0: SWA, CSA_RATIO: CSA, HCA_RATIO: HCA}

DSPARK_STAGES = 3
"""A DSpark release holds three drafter blocks, mtp.0 to mtp.2, whatever num_nextn_predict_layers says."""

FP8_BLOCK = 128
"""FP8 weights carry one scale per block of 128 x 128."""

FP4_BLOCK = 32
"""FP4 weights carry one scale per 32 columns of a row."""

MOST_LAYERS = 10_000


@dataclass(slots=True, kw_only=True)
class RopeScaling:
    """YaRN, for the layers with a compressor only; no attention factor."""

    type: str = setting(choices=("yarn", "default"))
    factor: float = setting(1.0, above=0)
    original_max_position_embeddings: int = setting(65536, least=1)
    beta_fast: float = setting(32.0, above=0)
    beta_slow: float = setting(1.0, above=0)


@dataclass(slots=True, kw_only=True)
class QuantizationConfig:
    """Block FP8 for the linears; ``scale_dtype`` is e8m0, or float32 in the Base releases."""

    quant_method: str = setting("fp8", choices=("fp8",))
    weight_block_size: list[int] = setting([FP8_BLOCK, FP8_BLOCK])
    scale_dtype: str = setting("e8m0", choices=("e8m0", "float32"))
    expert_dtype: str = setting("fp4", choices=("fp4", "fp8"))


@dataclass(slots=True, kw_only=True)
class ModelConfig:
    """One DeepSeek-V4. Sizes in elements; names of the official config.json."""

    name: str = setting()
    config: str | None = None

    vocab_size: int = setting(least=1, most=1 << 28)
    hidden_size: int = setting(least=1, most=1 << 24)
    num_hidden_layers: int = setting(least=1, most=MOST_LAYERS)
    max_position_embeddings: int = setting(least=1)
    torch_dtype: str = setting(choices=("bfloat16", "float16", "float32"))

    num_attention_heads: int = setting(least=1, most=1 << 20)
    head_dim: int = setting(least=1, most=1 << 20)
    qk_rope_head_dim: int = setting(least=2, most=1 << 20)
    q_lora_rank: int = setting(least=1, most=1 << 24)
    o_groups: int = setting(least=1, most=1 << 20)
    o_lora_rank: int = setting(least=1, most=1 << 24)
    sliding_window: int = setting(least=1, most=1 << 24)
    layer_types: list[str] = setting([])
    csa_ratio: int = setting(CSA_RATIO, least=2, most=1 << 20)
    hca_ratio: int = setting(HCA_RATIO, least=2, most=1 << 20)
    index_n_heads: int = setting(least=1, most=1 << 20)
    index_head_dim: int = setting(least=2, most=1 << 20)
    index_topk: int = setting(least=1)

    rope_theta: float = setting(above=0)
    compress_rope_theta: float = setting(above=0)
    rope_scaling: RopeScaling | None = None

    hc_mult: int = setting(least=1, most=1024)
    hc_sinkhorn_iters: int = setting(least=1, most=10_000)
    hc_eps: float = setting(least=0, most=1)
    rms_norm_eps: float = setting(least=0, most=1)

    n_routed_experts: int = setting(least=1, most=1 << 20)
    n_shared_experts: int = setting(1, least=1, most=1)
    num_experts_per_tok: int = setting(least=1, most=1 << 20)
    moe_intermediate_size: int = setting(least=1, most=1 << 24)
    num_hash_layers: int = setting(least=0, most=MOST_LAYERS)
    routed_scaling_factor: float = setting(above=0)
    swiglu_limit: float = setting(above=0)

    num_nextn_predict_layers: int = setting(0, least=0, most=1)
    dspark_block_size: int | None = setting(None, least=1, most=1 << 16)
    dspark_noise_token_id: int | None = setting(None, least=0)
    dspark_target_layer_ids: list[int] | None = None
    dspark_markov_rank: int | None = setting(None, least=1, most=1 << 24)

    quantization_config: QuantizationConfig | None = None
    bos_token_id: int | None = setting(0, least=0)
    eos_token_id: int | None = setting(1, least=0)
    more_eos_token_ids: list[int] = setting([])

    @property
    def is_dspark(self) -> bool:
        """Its ``mtp.*`` tensors are DSpark stages. num_nextn_predict_layers does not tell: it stays 1."""
        return self.dspark_block_size is not None

    @property
    def has_mtp(self) -> bool:
        """The release holds an MTP block, ``mtp.0``."""
        return self.num_nextn_predict_layers > 0 and not self.is_dspark

    def ratio(self, kind: str) -> int:
        """Tokens per compressed entry of a layer kind; 0 where nothing is compressed."""
        return {SWA: 0, CSA: self.csa_ratio, HCA: self.hca_ratio}[kind]


def model_problems(model: ModelConfig, prefix: str) -> Iterator[Problem]:
    """Everything wrong with a model by itself. Cross-field checks run only on legal fields."""
    own = list(field_problems(model, prefix))
    yield from own
    if not own:
        yield from _shape_problems(model, prefix)
        yield from _layer_problems(model, prefix)
        yield from _dspark_problems(model, prefix)
        yield from _format_problems(model, prefix)


def _shape_problems(model: ModelConfig, prefix: str) -> Iterator[Problem]:
    rope, head, index = model.qk_rope_head_dim, model.head_dim, model.index_head_dim
    if rope % 2:
        yield Problem(f"{prefix}.qk_rope_head_dim", rope, "rotary works on pairs", "use an even number")
    if rope >= head:
        yield Problem(
            f"{prefix}.qk_rope_head_dim",
            rope,
            f"the rotary part must be smaller than head_dim={head}",
            f"use less than {head}",
        )
    if rope > index:
        yield Problem(
            f"{prefix}.index_head_dim",
            index,
            f"cannot hold the rotary part, qk_rope_head_dim={rope}",
            f"use at least {rope}",
        )
    if model.num_attention_heads % model.o_groups:
        groups = [g for g in range(1, model.num_attention_heads + 1) if model.num_attention_heads % g == 0]
        yield Problem(
            f"{prefix}.o_groups",
            model.o_groups,
            f"does not divide num_attention_heads={model.num_attention_heads}",
            f"use one of {', '.join(map(str, groups))}",
        )
    if model.num_experts_per_tok > model.n_routed_experts:
        yield Problem(
            f"{prefix}.num_experts_per_tok",
            model.num_experts_per_tok,
            f"more than n_routed_experts={model.n_routed_experts}",
            f"use 1 to {model.n_routed_experts}",
        )


def _layer_problems(model: ModelConfig, prefix: str) -> Iterator[Problem]:
    layers = model.num_hidden_layers
    if len(model.layer_types) != layers:
        yield Problem(
            f"{prefix}.layer_types",
            None,
            f"has {len(model.layer_types)} entries for num_hidden_layers={layers}",
            f"give {layers} of {', '.join(LAYER_KINDS)}",
        )
    for index, kind in enumerate(model.layer_types):
        if kind not in LAYER_KINDS:
            yield Problem(f"{prefix}.layer_types[{index}]", kind, "is not known", f"use {', '.join(LAYER_KINDS)}")
    if model.num_hash_layers > layers:
        yield Problem(
            f"{prefix}.num_hash_layers",
            model.num_hash_layers,
            f"more than num_hidden_layers={layers}",
            f"use 0 to {layers}",
        )


def _dspark_problems(model: ModelConfig, prefix: str) -> Iterator[Problem]:
    names = ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank")
    values = {name: getattr(model, name) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(names):
        return
    for name in missing:
        yield Problem(f"{prefix}.{name}", None, "is missing, and the other dspark_* fields are there", f"give {name}")
    noise = model.dspark_noise_token_id
    if noise is not None and noise >= model.vocab_size:
        yield Problem(
            f"{prefix}.dspark_noise_token_id",
            noise,
            f"is no token of vocab_size={model.vocab_size}",
            f"use 0 to {model.vocab_size - 1}",
        )
    targets = model.dspark_target_layer_ids
    if targets is None:
        return
    last = model.num_hidden_layers - 1
    legal = all(0 <= layer <= last for layer in targets) and list(targets) == sorted(set(targets))
    if not targets or not legal:
        yield Problem(
            f"{prefix}.dspark_target_layer_ids",
            targets,
            f"must be rising numbers of layers 0 to {last}",
            f"for example [{max(0, last - 2)}]",
        )


def _format_problems(model: ModelConfig, prefix: str) -> Iterator[Problem]:
    quantization = model.quantization_config
    if quantization is None:
        return
    if list(quantization.weight_block_size) != [FP8_BLOCK, FP8_BLOCK]:
        yield Problem(
            f"{prefix}.quantization_config.weight_block_size",
            quantization.weight_block_size,
            "DeepSeek-V4 stores FP8 in blocks of 128 x 128",
            f"use [{FP8_BLOCK}, {FP8_BLOCK}]",
        )
    columns = {"hidden_size": model.hidden_size, "moe_intermediate_size": model.moe_intermediate_size}
    if quantization.expert_dtype == "fp4":
        for name, size in columns.items():
            if size % FP4_BLOCK:
                low, high = size // FP4_BLOCK * FP4_BLOCK, (size // FP4_BLOCK + 1) * FP4_BLOCK
                yield Problem(
                    f"{prefix}.{name}",
                    size,
                    f"FP4 experts need a multiple of {FP4_BLOCK}",
                    f"use {high}" if not low else f"use {low} or {high}",
                )
