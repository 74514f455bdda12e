"""The per-layer part of a ``config.json``: which layer is of which kind, how it routes, how it rotates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, cast

from builder.schema.fields import MISSING
from builder.schema.json_file import JsonNode, shown
from builder.schema.model import (
    CSA,
    CSA_RATIO,
    DSPARK_STAGES,
    HCA,
    HCA_RATIO,
    KIND_OF_RATIO,
    MOST_LAYERS,
    SWA,
    RopeScaling,
)

Labels = dict[str, str]
"""Where the file spells a field of ModelConfig otherwise: field to the file's own name."""

_CSA_TYPE, _HCA_TYPE = "compressed_sparse_attention", "heavily_compressed_attention"
_KIND_OF_TYPE = {"sliding_attention": SWA, _CSA_TYPE: CSA, _HCA_TYPE: HCA}
_HASH, _LEARNED = "hash_moe", "moe"
_SHARE = "partial_rotary_factor"
_THETAS = {"rope_theta": 10000.0, "compress_rope_theta": 160000.0}


def layer_values(node: JsonNode, layers: object, labels: Labels) -> dict[str, Any]:
    """Values for layer_types, csa_ratio, hca_ratio and num_hash_layers."""
    count = layers if isinstance(layers, int) and 1 <= layers <= MOST_LAYERS else None
    return {
        "layer_types": _layer_types(node, count, labels) or MISSING,
        "num_hash_layers": _num_hash_layers(node, count, labels),
        **_compress_rates(node, labels),
    }


def _layer_types(node: JsonNode, layers: int | None, labels: Labels) -> list[str] | None:
    """Official files have ratios, those of transformers have types; where both are there they must agree."""
    if node.get("compress_ratios") is None and node.get("layer_types") is None:
        reason = "is missing, and so is layer_types; the order that transformers assumes then is wrong for V4-Pro"
        node.refuse("compress_ratios", None, reason, "give one of the two, with an entry for each layer")
        return None
    of_ratios, of_types = _kinds_of_ratios(node, layers), _kinds_of_types(node, layers)
    if of_ratios is None or of_types is None:
        if of_types is None:
            labels["layer_types"] = "compress_ratios"
        return of_ratios or of_types
    for index, (one, other) in enumerate(zip(of_ratios, of_types, strict=True)):
        if one != other:
            reason = f"says {other} for a layer that is {one} in compress_ratios"
            node.refuse(f"layer_types[{index}]", None, reason, "leave one of the two out")
            return None
    return of_types


def _kinds_of_ratios(node: JsonNode, layers: int | None) -> list[str] | None:
    """Kinds of the layers; a release adds an entry for its MTP block, or three for its DSpark stages."""
    ratios = node.items("compress_ratios")
    if (
        ratios is None
        or layers is None
        or not _length_fits(node, "compress_ratios", ratios, layers, (1, DSPARK_STAGES))
    ):
        return None
    known = tuple(KIND_OF_RATIO)
    if not _all_known(node, "compress_ratios", ratios, known, "use 0, 4 or 128"):
        return None
    for index in range(layers, len(ratios)):
        if ratios[index] != 0:
            reason = f"is the drafter's (the layers are 0 to {layers - 1}), and its blocks have a sliding window only"
            node.refuse(f"compress_ratios[{index}]", ratios[index], reason, "use 0")
            return None
    return [KIND_OF_RATIO[cast("int", ratio)] for ratio in ratios[:layers]]


def _kinds_of_types(node: JsonNode, layers: int | None) -> list[str] | None:
    types = node.items("layer_types")
    if types is None or layers is None or not _length_fits(node, "layer_types", types, layers):
        return None
    if not _all_known(node, "layer_types", types, _KIND_OF_TYPE, f"use one of {', '.join(_KIND_OF_TYPE)}"):
        return None
    return [_KIND_OF_TYPE[cast("str", name)] for name in types]


def _length_fits(node: JsonNode, name: str, items: list[object], layers: int, extra: tuple[int, ...] = ()) -> bool:
    """One entry a layer, and as many more as ``extra`` allows."""
    if len(items) in (layers, *(layers + more for more in extra)):
        return True
    works = f"give {layers}"
    if extra:
        mtp, dspark = (layers + more for more in extra)
        works = f"give {layers}, {mtp} (with an MTP block) or {dspark} (with {DSPARK_STAGES} DSpark stages)"
    node.refuse(name, None, f"has {len(items)} entries for num_hidden_layers={layers}", works)
    return False


def _all_known(node: JsonNode, name: str, items: list[object], known: Iterable[object], works: str) -> bool:
    legal = list(known)
    wrong = [i for i, item in enumerate(items) if type(item) is not type(legal[0]) or item not in legal]
    if wrong:
        more = f", nor are {len(wrong) - 1} more" if len(wrong) > 1 else ""
        node.refuse(f"{name}[{wrong[0]}]", items[wrong[0]], f"is not known{more}", works)
    return not wrong


def _compress_rates(node: JsonNode, labels: Labels) -> dict[str, Any]:
    """Tokens per compressed entry: 4 and 128 in every release; transformers allows others beside layer_types."""
    rates = node.child("compress_rates")
    return {
        "csa_ratio": _compress_rate(node, rates, (CSA, _CSA_TYPE, CSA_RATIO), labels),
        "hca_ratio": _compress_rate(node, rates, (HCA, _HCA_TYPE, HCA_RATIO), labels),
    }


def _compress_rate(node: JsonNode, rates: JsonNode | None, kind: tuple[str, str, int], labels: Labels) -> Any:
    """The older spelling wins, as it does in transformers."""
    word, name, official = kind
    older = f"compress_rate_{word}"
    found, where = (node, older) if rates is None or node.get(older) is not None else (rates, name)
    labels[f"{word}_ratio"] = f"{found.path}{where}"
    value = found.whole(where, official)
    if node.get("compress_ratios") is not None and value not in (official, MISSING):
        return found.refuse(where, value, f"compress_ratios is there too, and means {official}", f"use {official}")
    return value


def _num_hash_layers(node: JsonNode, layers: int | None, labels: Labels) -> Any:
    """The first layers route by a table; transformers lists how every layer routes."""
    types = node.items("mlp_layer_types")
    if types is None:
        return node.whole("num_hash_layers", MISSING if node.get("mlp_layer_types") is None else 0)
    labels["num_hash_layers"] = "mlp_layer_types"
    counted, stated = _hash_prefix(node, types, layers), node.whole("num_hash_layers", None)
    if isinstance(counted, int) and isinstance(stated, int) and counted != stated:
        reason = f"starts with {counted} {_HASH}, and num_hash_layers={stated}"
        return node.refuse("mlp_layer_types", None, reason, "leave one of the two out")
    return counted


def _hash_prefix(node: JsonNode, types: list[object], layers: int | None) -> Any:
    name, known = "mlp_layer_types", (_HASH, _LEARNED)
    if layers is None or not _length_fits(node, name, types, layers):
        return MISSING
    if not _all_known(node, name, types, known, f"use {_HASH} or {_LEARNED}"):
        return MISSING
    count = types.index(_LEARNED) if _LEARNED in types else layers
    if _HASH in types[count:]:
        index = types.index(_HASH, count)
        return node.refuse(f"{name}[{index}]", _HASH, f"follows a layer of {_LEARNED}", f"{_HASH} layers come first")
    return count


def rotary_values(node: JsonNode, head_dim: object, labels: Labels) -> dict[str, Any]:
    """Values for qk_rope_head_dim, rope_theta, compress_rope_theta and rope_scaling."""
    parameters = node.child("rope_parameters")
    thetas = {name: node.real(name, theta) for name, theta in _THETAS.items()}
    if parameters is not None and ("main" in parameters.data or "compress" in parameters.data):
        return _nested_rotary(node, parameters, thetas, head_dim, labels)
    given = [part for part in (node.child("rope_scaling"), parameters) if part is not None]
    scalings = [_scaling(part, labels) for part in given]
    if len(given) == 2 and MISSING not in scalings and scalings[0] != scalings[1]:
        node.refuse("rope_scaling", None, "differs from rope_parameters", "leave one of the two out")
    return {
        "qk_rope_head_dim": _rope_head_dim([node, *given], head_dim, labels),
        **thetas,
        "rope_scaling": scalings[0] if scalings else None,
    }


def _nested_rotary(
    node: JsonNode, parameters: JsonNode, thetas: dict[str, Any], head_dim: object, labels: Labels
) -> dict[str, Any]:
    """One set for plain layers, one for those with a compressor. These win over what stands outside of them."""
    main, compress = parameters.child("main"), parameters.child("compress")
    for name, part in (("main", main), ("compress", compress)):
        if part is None and parameters.get(name) is None:
            parameters.refuse(name, None, "is missing", "give rope_parameters both main and compress")
    if main is None or compress is None:
        return {"qk_rope_head_dim": MISSING, **thetas, "rope_scaling": MISSING}
    main.word("rope_type", ("default",), "default")
    labels |= {"rope_theta": f"{main.path}rope_theta", "compress_rope_theta": f"{compress.path}rope_theta"}
    return {
        "qk_rope_head_dim": _rope_head_dim([node, main, compress], head_dim, labels),
        "rope_theta": main.real("rope_theta", thetas["rope_theta"]),
        "compress_rope_theta": compress.real("rope_theta", thetas["compress_rope_theta"]),
        "rope_scaling": _scaling(compress, labels),
    }


def _scaling(node: JsonNode, labels: Labels) -> Any:
    """YaRN or nothing. The attention factor that transformers would add is 1 in DeepSeek-V4."""
    before = len(node.problems)
    name = "rope_type" if node.get("rope_type") is not None else "type"
    if node.get(name) is None and node.get("factor") is not None:
        node.refuse(name, None, "is missing, and there is a factor", "use yarn, or default for none")
    elif node.word(name, ("yarn", "default"), "default") == "default":
        return None
    for key, only in (("attention_factor", 1), ("truncate", True)):
        value = node.get(key)
        if value is not None and value != only:
            node.refuse(key, value, "is not how DeepSeek-V4 rotates", f"use {shown(only)}, or leave it out")
    scaling = RopeScaling(
        type="yarn",
        factor=node.real("factor"),
        original_max_position_embeddings=node.whole("original_max_position_embeddings"),
        beta_fast=node.real("beta_fast", 32.0),
        beta_slow=node.real("beta_slow", 1.0),
    )
    labels |= {f"rope_scaling.{field.name}": f"{node.path}{field.name}" for field in dataclasses.fields(scaling)}
    return scaling if len(node.problems) == before else MISSING


def _rope_head_dim(nodes: list[JsonNode], head_dim: object, labels: Labels) -> Any:
    """Official files state the width, those of transformers its share of head_dim, up to three times over."""
    size = nodes[0].whole("qk_rope_head_dim", None)
    shares = [(node, node.real(_SHARE, None)) for node in nodes]
    if size is None and all(share is None for _, share in shares):
        nodes[0].refuse("qk_rope_head_dim", None, "is missing", f"give it, or {_SHARE}")
    for node, share in shares:
        if isinstance(share, float) and isinstance(head_dim, int):
            if size is None:
                labels["qk_rope_head_dim"] = f"{node.path}{_SHARE}"
            size = _share_width(node, share, head_dim, size)
    return MISSING if size is None else size


def _share_width(node: JsonNode, share: float, head_dim: int, size: Any) -> Any:
    """transformers cuts the width down to a whole number, so a stated one may be up to 1 less than the share says."""
    if not 0 < share <= 1:
        return node.refuse(_SHARE, share, "is out of range", "use more than 0 and at most 1")
    width = share * head_dim
    if size is None and abs(width - round(width)) > 1e-6:
        works = f"use {round(width)}/{head_dim}"
        return node.refuse(_SHARE, share, f"is {width:g} of head_dim={head_dim}, no whole number", works)
    if isinstance(size, int) and abs(width - size) >= 1:
        reason = f"is {width:g} of head_dim={head_dim}, and qk_rope_head_dim is {size}"
        return node.refuse(_SHARE, share, reason, "leave one of the two out")
    return round(width) if size is None else size
