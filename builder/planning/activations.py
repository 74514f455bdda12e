"""An estimate of the memory that a step works in: the largest live set of our plain kernels, place by place.

Checked against the measured peak of our own forward pass (``benchmarks/activations.py``). Every place of a layer is one
function; each counts what is alive there, in bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from builder.components.base.spec import DTYPE_BYTES
from builder.components.linear.spec import Formats, dtype_name
from builder.schema.config import BuildConfig

CHUNK = 256
"""Queries that attention and indexer compute at a time (``kernels.reference``)."""

VLLM_SCORES = 512 << 20
"""Bytes of index scores that vLLM keeps at once: the default of VLLM_SPARSE_INDEXER_MAX_LOGITS_MB in 0.33.0."""

FORMULA = (
    "max over places of a layer, for a prefill of T tokens and for a decode of all requests; "
    "mix = 2·S·b + 2·T·hidden·b + 3·S·x + S·b; queries = S·b + 2·T·hidden·b + N·(b + 2·x); "
    "attention = S·b + 2·T·hidden·b + 2·N·b + C·keys·heads/tp·3·x + C·picked·head_dim·b; "
    "indexer = the same without C, + C·index_heads/tp·max_model_len/ratio·x; "
    "shared = 2·S·b + T·hidden·(2·b + x) + T·inner·(4·x + b); "
    "head (last stage) = vocabulary/tp·(hidden + max_num_seqs·(1 + k))·x; "
    "T = max_num_batched_tokens, S = T·hc_mult·hidden, N = T·heads/tp·head_dim, C = min(T, 256), "
    "b = bytes of runtime.dtype, x = 4 (8 in float64)"
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step. sequences of ``each`` new tokens; b, x: bytes of runtime.dtype and of what is computed exactly."""

    config: BuildConfig
    sequences: int
    each: int
    b: int
    x: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.each

    @property
    def hidden(self) -> int:
        """One row of hidden states per token."""
        return self.tokens * self.config.model.hidden_size

    @property
    def stream(self) -> int:
        """Values of the residual stream."""
        return self.hidden * self.config.model.hc_mult

    @property
    def heads(self) -> int:
        return self.config.model.num_attention_heads // self.config.parallel.tp

    @property
    def queries(self) -> int:
        """Values of the queries of all heads of the rank."""
        return self.tokens * self.heads * self.config.model.head_dim

    @property
    def chunk(self) -> int:
        """Tokens of each sequence that attention takes at a time."""
        return min(self.each, CHUNK, max(64, 2 * self.config.model.sliding_window))

    @property
    def before_attention(self) -> int:
        """The layer's stream, its mix and the norm of that."""
        return self.b * (self.stream + 2 * self.hidden)

    @property
    def own_kernels(self) -> bool:
        """Ours, which make a weight plain before they use it; an engine's read it as it is stored."""
        return self.config.plan is None or self.config.plan.engine == "builder"

    def copy(self, values: int, *, stored: int) -> int:
        """Bytes of a weight made plain: ``stored`` bytes a value, 0 where it is quantized."""
        if not self.own_kernels or stored == self.b:
            return 0
        return values * (self.b if stored else self.b + self.x * (self.b != self.x))


def activation_bytes(config: BuildConfig, *, last_stage: bool) -> int:
    """The largest set of tensors alive at once in a step of max_num_batched_tokens, estimated by ``FORMULA``."""
    b = DTYPE_BYTES[dtype_name(config.runtime.dtype)]
    tokens, each = config.runtime.max_num_batched_tokens, 1 + config.spec.drafts
    decoding = max(1, min(config.runtime.max_num_seqs, tokens // each))
    prefill = _Step(config, 1, tokens, b, max(b, 4))
    decode = _Step(config, decoding, min(each, tokens), b, max(b, 4))
    return max(_peak(step, decode, last_stage=last_stage) for step in (prefill, decode))


def _peak(step: _Step, decode: _Step, *, last_stage: bool) -> int:
    kinds = set(step.config.model.layer_types)
    places = [_mix(step), _make_queries(step), _attend(step, 0, 0), _experts(step)]
    if "csa" in kinds:
        places += _sparse(step)
    if "hca" in kinds:
        places += [_attend(step, _entries(step, step.config.model.hca_ratio), 0), _compress(step)]
    if last_stage:
        places.append(_head(step, decode))
    return max(places)


def _mix(step: _Step) -> int:
    # Layer input, stream, sub-layer in and out; kept, added and their sum exact; the sum rounded.
    rounded = step.b if step.b != step.x else 0
    return step.stream * (2 * step.b + 3 * step.x + rounded) + 2 * step.hidden * step.b


def _make_queries(step: _Step) -> int:
    model = step.config.model
    latent = step.tokens * model.q_lora_rank * step.b
    raw = step.queries * step.b
    weight = step.copy(step.heads * model.head_dim * model.q_lora_rank, stored=_plain_bytes(step))
    # The norm: raw, its exact copy, and the result; then raw, normed and turned.
    norm = step.queries * (step.b + 2 * step.x if step.b != step.x else 3 * step.x)
    turned = 4 * step.x * step.tokens * step.heads * model.qk_rope_head_dim if step.b == step.x else 0
    return step.before_attention + latent + max(raw + weight, norm + turned)


def _attend(step: _Step, entries: int, picked: int) -> int:
    """Attention over the window, ``entries`` that all see, and ``picked`` ones that each query has of its own."""
    model = step.config.model
    rows = step.sequences * step.chunk
    window = model.sliding_window - 1 + step.chunk
    scores = rows * step.heads * (window + entries + picked) * step.x
    gathered = rows * picked * model.head_dim
    shared = step.sequences * entries * model.head_dim * step.b
    exact = gathered * step.x if step.b != step.x else 0
    done = step.queries * step.b * (step.each - step.chunk) // step.each
    index = step.tokens * picked * 8
    work = gathered * step.b + max(3 * scores, scores + exact) + shared
    if not step.own_kernels:  # an engine's kernel keeps no scores and reads entries where they are
        done, work = step.queries * step.b, 0
    latent = step.tokens * (model.q_lora_rank + 2 * model.head_dim) * step.b
    return step.before_attention + latent + step.queries * step.b + done + index + work


def _sparse(step: _Step) -> list[int]:
    model = step.config.model
    entries = _entries(step, model.csa_ratio)
    if entries <= model.index_topk:
        return [_attend(step, entries, 0)]
    return [_attend(step, 0, model.index_topk), _index(step, entries)]


def _index(step: _Step, entries: int) -> int:
    model, tp = step.config.model, step.config.parallel.tp
    heads = model.index_n_heads // (1 if model.index_n_heads % tp else tp)
    rows = step.sequences * min(step.each, CHUNK)
    keys = step.sequences * entries * model.index_head_dim * (step.b + (step.x if step.b != step.x else 0))
    keys *= step.own_kernels
    queries = step.tokens * heads * model.index_head_dim * step.b
    # Ours keeps the scores of a chunk per head and sums then; an engine's kernel sums at once, for all tokens.
    scores = rows * (heads + 1) * entries * step.x if step.own_kernels else _engine_scores(step, entries)
    return step.before_attention + step.queries * step.b + queries + keys + scores


def _engine_scores(step: _Step, entries: int) -> int:
    # vLLM cuts the queries into chunks whose scores stay within a limit.
    scores, engine = step.tokens * entries * 4, step.config.plan.engine if step.config.plan else ""
    return min(scores, VLLM_SCORES) if engine == "vllm" else scores


def _compress(step: _Step) -> int:
    # Windows that a decode completes, all at once: gathered, their weights, their products.
    model = step.config.model
    rows = min(step.tokens, step.sequences) * model.hca_ratio * 2 * model.head_dim * step.x
    return step.before_attention + step.queries * step.b + 3 * rows


def _experts(step: _Step) -> int:
    model, parallel = step.config.model, step.config.parallel
    inner = model.moe_intermediate_size // (1 if parallel.shared_expert == "replicated" else parallel.tp)
    live = 2 * step.stream * step.b + step.hidden * (2 * step.b + step.x)
    weight = step.copy(model.moe_intermediate_size * model.hidden_size, stored=_plain_bytes(step))
    return live + weight + step.tokens * inner * (4 * step.x + step.b)


def _head(step: _Step, decode: _Step) -> int:
    model, tp = step.config.model, step.config.parallel.tp
    rows = min(decode.tokens, step.tokens)
    share = -(-model.vocab_size // tp)
    weight = share * model.hidden_size * step.x if step.own_kernels else 0
    return step.stream * step.b + weight + rows * share * step.x


def _entries(step: _Step, ratio: int) -> int:
    # All requests at max_model_len, but no more tokens than the memory could hold if there were nothing else in it.
    config = step.config
    length, memory = config.runtime.max_model_len, config.hardware.total_bytes
    if memory is not None:
        length = min(length, max(1, memory * config.parallel.pp // _least_bytes_per_token(config) // step.sequences))
    return length // ratio


def _least_bytes_per_token(config: BuildConfig) -> int:
    # A byte for every value of an entry; layouts take as much or more, but for keys in FP4.
    model = config.model
    kinds = Counter(model.layer_types)
    sparse = kinds["csa"] * (model.head_dim + model.index_head_dim // 2) // model.csa_ratio
    return max(1, sparse + kinds["hca"] * model.head_dim // model.hca_ratio)


def _plain_bytes(step: _Step) -> int:
    # Bytes of a value of a matrix as the rank holds it: 0 where it is quantized.
    form = Formats.of(step.config.model, step.config.runtime.weights).linear
    return DTYPE_BYTES[form.dtype] if form.kind == "plain" else 0
