"""Run a checkpoint on inputs whose outputs are known, and say how far apart the two are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from builder.errors import CheckpointError
from builder.kernels.shapes import unflatten
from builder.runtime.cache import Cache
from builder.runtime.model import Model
from builder.runtime.step import cached_step, make_step

EXPECTED_FILE = "expected.safetensors"

CHUNKS = (1, 3, 17, 64, 5, 128)
"""Sizes of the pieces of the chunked prefill, in turn: off every window and ratio."""

PREFILL, DECODE, CHUNKED = "prefill", "decode", "chunked_logits"


@dataclass(frozen=True)
class Expected:
    """Known outputs: ``input_ids`` [batch, prompt + decoded], the length of the prompt, and tensors by name."""

    input_ids: Tensor
    prompt_length: int
    outputs: dict[str, Tensor]

    @property
    def rows(self) -> list[list[int]]:
        """The token ids of each sequence."""
        return cast("list[list[int]]", cast("Any", self.input_ids).tolist())


@dataclass(frozen=True)
class Comparison:
    """The largest absolute difference of every output that was compared."""

    max_abs_diff: dict[str, float]
    tolerance: float

    @property
    def ok(self) -> bool:
        """All within the tolerance (a NaN is not)."""
        return all(difference <= self.tolerance for difference in self.max_abs_diff.values())

    @classmethod
    def worst(cls, found: Sequence[Comparison]) -> Comparison:
        """Of several comparisons with the same known outputs, the largest difference of each (a NaN is the largest)."""
        names = found[0].max_abs_diff
        worst = {name: max((one.max_abs_diff[name] for one in found), key=_not_a_number_last) for name in names}
        return cls(worst, found[0].tolerance)

    def to_dict(self) -> dict[str, Any]:
        """As the report has it; a difference that is no number is null, and not ok."""
        shown = {name: value if math.isfinite(value) else None for name, value in self.max_abs_diff.items()}
        return {"max_abs_diff": shown, "tolerance": self.tolerance, "ok": self.ok}


def _not_a_number_last(difference: float) -> float:
    return math.inf if math.isnan(difference) else difference


def read_expected(folder: str) -> Expected:
    """The known outputs beside a checkpoint. Raises CheckpointError."""
    path = Path(folder) / EXPECTED_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{path}: is not there, and task=verify compares with it; or use verify.against=transformers"
        )
    try:
        tensors, metadata = _read_all(path)
        length = int(metadata["prompt_length"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected input_ids, outputs and the metadata prompt_length, found: {error}"
        ) from None
    ids = tensors.pop("input_ids", None)
    shaped = ids is not None and ids.dim() == 2 and ids.shape[0] > 0 and not ids.is_floating_point()
    if ids is None or not shaped or not 0 < length <= ids.shape[1]:
        found = "none" if ids is None else f"{tuple(ids.shape)} of {ids.dtype} with prompt_length {length}"
        raise CheckpointError(f"{path}: input_ids: expected [batch, prompt_length + decoded], found {found}")
    return Expected(ids, length, tensors)


def _read_all(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with cast("Any", safe_open)(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping


def compare(model: Model, expected: Expected, tolerance: float) -> Comparison | None:
    """Run the inputs in three ways, with the drafter where there is one, and compare what both sides have.

    None on a rank that has no outputs: the last stage has them.
    """
    _check_ids(expected, model.config.model.vocab_size)
    with torch.inference_mode():
        found = _one_go(model, expected) | _chunked(model, expected)
    if not model.peers.last:
        return None
    targets = {**expected.outputs, CHUNKED: expected.outputs.get("prefill_logits")}
    differences = {
        name: _difference(value, target) for name, value in found.items() if (target := targets.get(name)) is not None
    }
    if not differences:
        raise CheckpointError(f"{EXPECTED_FILE}: expected known outputs ({', '.join(found)}), found none of them")
    return Comparison(differences, tolerance)


def _check_ids(expected: Expected, vocabulary: int) -> None:
    low, high = int(expected.input_ids.min()), int(expected.input_ids.max())
    if low < 0 or high >= vocabulary:
        raise CheckpointError(f"{EXPECTED_FILE}: input_ids: expected 0 to {vocabulary - 1}, found {low} to {high}")


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        raise CheckpointError(
            f"{EXPECTED_FILE}: expected outputs of shape {tuple(found.shape)}, found {tuple(expected.shape)}"
        )
    if not found.numel():
        return 0.0
    return float((found.double() - expected.to(found.device).double()).abs().max())


def _cache(model: Model, expected: Expected) -> Cache:
    return model.cache(expected.input_ids.shape[0], expected.input_ids.shape[1])


def _one_go(model: Model, expected: Expected) -> dict[str, Tensor]:
    # The prompt in one pass, then one token at a time.
    rows = expected.rows
    length, batch = expected.prompt_length, range(len(rows))
    cache = _cache(model, expected)
    found: dict[str, list[Tensor]] = {}
    for first, last in [(0, length), *((at, at + 1) for at in range(length, len(rows[0])))]:
        phase = PREFILL if first == 0 else DECODE
        stream = model.run(cached_step(cache, [row[first:last] for row in rows], batch))
        if stream is None:
            continue
        outputs = {"logits": model.stage.predict(stream), "hidden": stream.clone()}
        outputs |= _drafted(model, cache, stream, rows, first, last)
        for name, value in outputs.items():
            key = f"mtp_{phase}_logits" if name == "mtp" else f"{phase}_{name}"
            found.setdefault(key, []).append(unflatten(value, 0, (len(rows), -1)))
    return {name: torch.cat(parts, dim=1) for name, parts in found.items()}


def _drafted(
    model: Model, cache: Cache, stream: Tensor, rows: list[list[int]], first: int, last: int
) -> dict[str, Tensor]:
    # The drafter takes the stream of a token and the token after it; the last token has none after it.
    drafters = [module for name, module in model.stage.named_children() if name == "mtp"]
    if not drafters or last >= len(rows[0]):
        return {}
    following = [row[first + 1 : last + 1] for row in rows]
    step = make_step(cache, following, [first] * len(rows), range(len(rows)), model.device)
    _, logits = drafters[0](stream, step)
    return {"mtp": logits}


def _chunked(model: Model, expected: Expected) -> dict[str, Tensor]:
    rows = expected.rows
    cache = _cache(model, expected)
    parts: list[Tensor] = []
    for first, last in _pieces(expected.prompt_length):
        step = cached_step(cache, [row[first:last] for row in rows], range(len(rows)))
        if (stream := model.run(step)) is not None:
            parts.append(unflatten(model.stage.predict(stream), 0, (len(rows), -1)))
    return {CHUNKED: torch.cat(parts, dim=1)} if parts else {}


def _pieces(length: int) -> Iterator[tuple[int, int]]:
    first, number = 0, 0
    while first < length:
        last = min(first + CHUNKS[number % len(CHUNKS)], length)
        yield first, last
        first, number = last, number + 1
