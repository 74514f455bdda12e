"""Names of tensors in each layout. The table lists full names; ``#`` stands for a number, and nothing else is open.

A name of a file belongs to exactly one row, because a row is looked up by the whole name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

_MATRICES = ("attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b", "attn.indexer.wq_b")
_EXPERT_MATRICES = ("w1", "w2", "w3")
_HC = ("fn", "base", "scale")
_COMPRESSORS = {"attn.compressor": "self_attn.compressor", "attn.indexer.compressor": "self_attn.compressor.indexer"}

_FUSED_LAYER: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    **{f"hc_{part}_{kind}": f"{part}_hc.{kind}" for part in ("attn", "ffn") for kind in _HC},
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a.weight": "self_attn.q_a_proj.weight",
    "attn.q_norm.weight": "self_attn.q_a_norm.weight",
    "attn.wq_b.weight": "self_attn.q_b_proj.weight",
    "attn.wkv.weight": "self_attn.kv_proj.weight",
    "attn.kv_norm.weight": "self_attn.kv_norm.weight",
    "attn.wo_a.weight": "self_attn.o_a_proj.weight",
    "attn.wo_b.weight": "self_attn.o_b_proj.weight",
    **{f"{ours}.ape": f"{theirs}.position_bias" for ours, theirs in _COMPRESSORS.items()},
    **{f"{ours}.norm.weight": f"{theirs}.kv_norm.weight" for ours, theirs in _COMPRESSORS.items()},
    **{f"{ours}.wkv.weight": f"{theirs}.kv_proj.weight" for ours, theirs in _COMPRESSORS.items()},
    **{f"{ours}.wgate.weight": f"{theirs}.gate_proj.weight" for ours, theirs in _COMPRESSORS.items()},
    "attn.indexer.wq_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "attn.indexer.weights_proj.weight": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "ffn.gate.weight": "mlp.gate.weight",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.tid2eid": "mlp.gate.tid2eid",
    "ffn.shared_experts.w1.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn.shared_experts.w2.weight": "mlp.shared_experts.down_proj.weight",
    "ffn.shared_experts.w3.weight": "mlp.shared_experts.up_proj.weight",
}
"""Plain tensors of a layer, official and as transformers' modules call them, but for the routed experts."""

_EXPERTS = tuple(f"ffn.experts.#.{matrix}.weight" for matrix in _EXPERT_MATRICES)

_SCALES = (
    *(f"{matrix}.scale" for matrix in _MATRICES),
    *(f"ffn.experts.#.{matrix}.scale" for matrix in _EXPERT_MATRICES),
    *(f"ffn.shared_experts.{matrix}.scale" for matrix in _EXPERT_MATRICES),
)

_NOT_IN_DRAFTERS = ("attn.compressor", "attn.indexer", "ffn.gate.tid2eid")
_DRAFTER_ONLY = (
    *(f"{name}.{kind}" for name in ("e_proj", "h_proj", "main_proj") for kind in ("weight", "scale")),
    *(f"{name}.weight" for name in ("enorm", "hnorm", "norm", "main_norm", "confidence_head.proj")),
    *(f"hc_head_{kind}" for kind in _HC),
    *(f"markov_head.markov_w{number}.weight" for number in (1, 2)),
)
_REPEATED = ("emb.tok_emb.weight", "head.weight")
"""Copies of the embedding and the head that Base releases carry in their drafter, and that nothing reads."""

_TOP = ("embed.weight", "head.weight", "norm.weight", *(f"hc_head_{kind}" for kind in _HC))
_HEAD_PARTS = {f"hc_head_{kind}": f"model.hc_head.hc_{kind}" for kind in _HC}

_NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,8})(?=\.)")


@dataclass(frozen=True, slots=True)
class Known:
    """A name of the table: its row, in the layout's spelling, and the numbers in it."""

    row: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """One spelling of the names. rows: the official row of each row of this layout.

    fused: the routed experts of a layer stand in two tensors, gate and up side by side, and down.
    """

    name: str
    rows: Mapping[str, str]
    fused: bool = False

    @property
    def official(self) -> bool:
        """The releases' own layout, the only one that can hold quantized weights."""
        return self.name == "official"

    @cached_property
    def _spelling(self) -> dict[str, str]:
        return {official: row for row, official in self.rows.items()}

    def with_names(self, official: Iterable[str]) -> Layout:
        """The same layout, in which files may also hold tensors that a new part of the model declares."""
        if not self.official:
            return self
        return replace(self, rows={**self.rows, **{row: row for row in {split(name).row for name in official}}})

    def find(self, name: str) -> Known | None:
        """The row that a file's name belongs to, None if there is none."""
        known = split(name)
        return known if known.row in self.rows and "#" not in name else None

    def spelled(self, official: str) -> str:
        """How this layout calls a tensor of the official layout; KeyError if it has no such tensor."""
        known = split(official)
        return fill(self._spelling[known.row], known.numbers)

    def official_name(self, known: Known) -> str:
        """The official name of a tensor of this layout (of fused experts, a row with ``#`` left for the expert)."""
        return fill(self.rows[known.row], known.numbers)


def split(name: str) -> Known:
    """The numbers of a name, and what is left."""
    return Known(_NUMBER.sub("#", name), tuple(int(digits) for digits in _NUMBER.findall(name)))


def fill(row: str, numbers: Iterable[int]) -> str:
    """A row with its numbers in place."""
    for number in numbers:
        row = row.replace("#", str(number), 1)
    return row


def repeated(known: Known) -> bool:
    """A copy of another tensor, which nothing reads."""
    return known.row in {f"mtp.#.{name}" for name in _REPEATED}


def kept_exact(official: str) -> bool:
    """Whether a tensor is F32 in every layout and format: hyper-connections, ape, sinks, the router's bias."""
    last = official.rsplit(".", 1)[-1]
    return last.startswith("hc_") or last in ("ape", "attn_sink", "bias")


def is_norm(official: str) -> bool:
    """Whether a tensor is the weight of a norm, which transformers keeps in F32."""
    return official.endswith("norm.weight")


def fused_experts(layer: str, matrix: str) -> tuple[str, int, int]:
    """Where the fused layout keeps w1, w2 or w3 of a layer: the tensor, which part of its rows, of how many."""
    head = f"model.{layer}.mlp.experts"
    return (f"{head}.down_proj", 0, 1) if matrix == "w2" else (f"{head}.gate_up_proj", int(matrix == "w3"), 2)


def recognise(names: Iterable[str]) -> Layout:
    """The layout that most names belong to; official if none does."""
    rows = [row for row in (split(name).row for name in names) if row not in _DRAFTER_ROWS]
    counts = [sum(row in layout.rows for row in rows) for layout in LAYOUTS]
    return LAYOUTS[counts.index(max(counts))]


def _drafter_rows() -> Iterator[str]:
    for name in (*_FUSED_LAYER, *_EXPERTS, *_SCALES):
        if not name.startswith(_NOT_IN_DRAFTERS):
            yield f"mtp.#.{name}"
    for name in (*_DRAFTER_ONLY, *_REPEATED):
        yield f"mtp.#.{name}"


_DRAFTER_ROWS = {row: row for row in _drafter_rows()}


def _official_rows() -> dict[str, str]:
    names = (*_TOP, *(f"layers.#.{name}" for name in (*_FUSED_LAYER, *_EXPERTS, *_SCALES)))
    return {**{name: name for name in names}, **_DRAFTER_ROWS}


def _saved_rows() -> dict[str, str]:
    """What ``save_pretrained`` writes: official names below ``model.``, but for a few of its own."""
    rows = {
        "model.embed_tokens.weight": "embed.weight",
        "head.weight": "head.weight",
        "model.norm.weight": "norm.weight",
    }
    rows.update({theirs: ours for ours, theirs in _HEAD_PARTS.items()})
    for name in (*_FUSED_LAYER, *_EXPERTS):
        theirs = "attn.norm.weight" if name == "attn.kv_norm.weight" else name
        rows[f"model.layers.#.{theirs}"] = f"layers.#.{name}"
    return {**rows, **_DRAFTER_ROWS}


def _fused_rows() -> dict[str, str]:
    """What ``save_pretrained(save_original_format=False)`` writes: the names of transformers' modules."""
    rows = {"model.embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}
    rows["model.norm.weight"] = "norm.weight"
    rows.update({theirs: ours for ours, theirs in _HEAD_PARTS.items()})
    rows.update({f"model.layers.#.{theirs}": f"layers.#.{ours}" for ours, theirs in _FUSED_LAYER.items()})
    rows["model.layers.#.mlp.experts.gate_up_proj"] = "layers.#.ffn.experts.#.w1.weight"
    rows["model.layers.#.mlp.experts.down_proj"] = "layers.#.ffn.experts.#.w2.weight"
    return {**rows, **_DRAFTER_ROWS}


OFFICIAL = Layout("official", _official_rows())
TRANSFORMERS = Layout("transformers", _saved_rows())
TRANSFORMERS_FUSED = Layout("transformers_fused", _fused_rows(), fused=True)
LAYOUTS = (OFFICIAL, TRANSFORMERS, TRANSFORMERS_FUSED)
"""Official files (Base too), and the two that transformers writes. Drafter blocks have official names in all."""
