"""What the target's pass writes, counted by operation: a stash in place costs nothing, nor does prompt look-up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from conftest import Run
from models import random_ids, random_model, share_target_weights, small
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from builder.components.base.step import Step
from builder.components.mtp_stash.module import MTPStash
from builder.runtime.cache import Cache, declared_rows
from builder.runtime.model import Model
from builder.runtime.step import cached_step

ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")
"""Make a tensor and write nothing into it."""

COPIES = ("aten::copy_", "aten::clone", "aten::_to_copy")

STORES = "aten::index_put_"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="kernels=compiled needs a C++ compiler"
)

DRAFTS = 3


@dataclass(frozen=True)
class Operation:
    """An operation that was dispatched. written: bytes of each tensor it filled; inputs: elements of each it took."""

    name: str
    written: tuple[int, ...]
    inputs: tuple[int, ...]


class Recorder(TorchDispatchMode):
    """Keeps every operation that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and keep what its schema says of it."""
        del types
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        written = () if name in ALLOCATIONS else tuple(_written(func, args, kwargs or {}, result))
        self.operations.append(Operation(name, written, tuple(one.numel() for one in _tensors(args))))
        return result


def _written(func: Any, args: Any, kwargs: Any, result: Any) -> Iterator[int]:
    if func._schema.name == STORES:
        # The schema calls the whole tensor written; it is the rows that the values go to.
        yield cast("Tensor", args[2]).nbytes
        return
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (one.nbytes for one in _tensors(given))
    results = result if isinstance(result, tuple) else (result,)
    for value, declared in zip(results, func._schema.returns, strict=False):
        if declared.alias_info is None:
            yield from (one.nbytes for one in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from _tensors(one)


SHAPES = {
    "prefill": ([], [8]),
    "prefill longer than the rings": ([], [200]),
    "chunk": ([30], [7]),
    "chunk longer than open rows": ([30], [21]),
    "decode": ([50, 131], [1, 1]),
    "verify": ([50, 127, 9], [1 + DRAFTS] * 3),
    "mixed": ([50, 20], [1, 5]),
}
"""Tokens of each request in a step before, and in the step that is counted."""


def target_pass(model: Model, shape: str) -> list[Operation]:
    """The operations of ``run_layers`` and ``predict`` over the same tokens, whatever the model speculates with."""
    before, counted = SHAPES[shape]
    cache = model.cache(len(counted), 256)
    with torch.inference_mode():
        if before:
            model.stage.run_layers(next_tokens(cache, before, seed=1))
        step = next_tokens(cache, counted, seed=2)
        with Recorder() as seen:
            model.stage.predict(model.stage.run_layers(step))
    return seen.operations


def next_tokens(cache: Cache, counts: list[int], seed: int, row: int = 0) -> Step:
    """A step over ``counts[i]`` more tokens of request i."""
    tokens = [random_ids(count, 260, seed=seed + index) for index, count in enumerate(counts)]
    return cached_step(cache, tokens, range(len(counts)), row)


def speculating(method: str, dtype: str = "float32", kernels: str = "reference", *more: str) -> Model:
    chosen = [f"spec={method}", *([f"spec.num_speculative_tokens={DRAFTS}"] if method != "none" else [])]
    return random_model(small(f"runtime.dtype={dtype}", f"kernels={kernels}", *chosen, *more))


def writes(operations: list[Operation]) -> list[tuple[str, int]]:
    return [(one.name, sum(one.written)) for one in operations if one.written]


def stored(operations: list[Operation]) -> int:
    """Bytes put into rings and tables."""
    return sum(sum(one.written) for one in operations if one.name == STORES)


def beside_storing(operations: list[Operation]) -> list[tuple[str, int]]:
    """What is written elsewhere; the remainders are the numbers of the rows that are stored."""
    return [one for one in writes(operations) if one[0] not in (STORES, "aten::remainder")]


def longer_rings(none: Model, other: Model, counts: list[int]) -> int:
    """Bytes that a step stores more because rings are longer: of a step longer than a ring its last rows remain."""
    extra = 0
    forms = (declared_rows(one.stage, one.assembly.cache_format) for one in (none, other))
    for (_, short), (_, long) in zip(*forms, strict=True):
        kept = [sum(min(count, rows.fixed) for count in counts) for rows in (short, long)]
        extra += (kept[1] - kept[0]) * long.row_bytes
    return extra


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [
        ("bfloat16", "reference"),
        ("float64", "reference"),
        pytest.param("bfloat16", "compiled", marks=needs_compiler),
        pytest.param("float32", "compiled", marks=needs_compiler),
    ],
)
def test_the_target_pass_writes_the_same_with_and_without_speculation(dtype: str, kernels: str) -> None:
    none, ngram, mtp = (speculating(method, dtype, kernels) for method in ("none", "ngram", "mtp"))
    share_target_weights(mtp, none)
    for shape, (_, counted) in SHAPES.items():
        plain, looking, stashing = (target_pass(model, shape) for model in (none, ngram, mtp))
        assert len(plain) > 200
        assert [one.name for one in looking] == [one.name for one in plain]
        extra = longer_rings(none, ngram, counted)
        assert (extra > 0) == ("longer" in shape)
        assert beside_storing(looking) == beside_storing(plain)
        assert stored(looking) == stored(plain) + extra
        assert extra or writes(looking) == writes(plain)
        # The stash: the same operations with the same bytes, the last mix into a place that is already there.
        assert writes(stashing) == writes(looking)
        assert allocations(stashing) == allocations(looking) - 1
        assert copies_of_the_stream(mtp, stashing, sum(counted)) == copies_of_the_stream(none, plain, sum(counted))


def allocations(operations: list[Operation]) -> int:
    return sum(one.name in ALLOCATIONS for one in operations)


def copies_of_the_stream(model: Model, operations: list[Operation], tokens: int) -> int:
    size = tokens * model.config.model.hc_mult * model.config.model.hidden_size
    return sum(one.name in COPIES and size in one.inputs for one in operations)


def test_no_copy_of_the_stream_is_dispatched_at_all_where_nothing_is_widened() -> None:
    model = speculating("mtp")
    for shape, (_, counted) in SHAPES.items():
        assert copies_of_the_stream(model, target_pass(model, shape), sum(counted)) == 0


def test_a_stash_filled_by_a_copy_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_copy(self: MTPStash, y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, step: Step) -> Tensor:
        mixed = self.ops.hyper_connections.after(y, stream, post, comb)
        return self.written(step.stash_row, stream.shape[0]).copy_(mixed)

    model = speculating("mtp")
    placed = target_pass(model, "chunk")
    monkeypatch.setattr(MTPStash, "forward", by_copy)
    copied = target_pass(model, "chunk")
    config = model.config.model
    assert copies_of_the_stream(model, copied, 7) == 1
    more = sum(size for _, size in writes(copied)) - sum(size for _, size in writes(placed))
    assert more == 7 * config.hc_mult * config.hidden_size * 4


def test_over_a_thousand_steps_the_stream_is_written_to_the_same_rows() -> None:
    layers = ("model.num_hidden_layers=1", "model.layer_types=[swa]", "model.num_hash_layers=0")
    model = speculating("mtp", "float32", "reference", *layers, "runtime.max_num_batched_tokens=9")
    rows = dict(model.stage.named_buffers())["mtp_stash.rows"]
    address, row_bytes, cache = rows.data_ptr(), rows.stride(0) * rows.element_size(), model.cache(2, 2048)
    before = rows.clone()
    with torch.inference_mode():
        for index in range(1000):
            count, row = 1 + index % 2, index % 6
            before.copy_(rows)
            stream = model.stage.run_layers(next_tokens(cache, [count, 1], index, row))
            assert dict(model.stage.named_buffers())["mtp_stash.rows"].data_ptr() == address
            assert stream.data_ptr() == address + row * row_bytes
            used = slice(row, row + count + 1)
            assert torch.equal(stream.flatten(1), rows[used])
            assert not torch.equal(before[used], rows[used])
            assert torch.equal(before[: used.start], rows[: used.start])
            assert torch.equal(before[used.stop :], rows[used.stop :])


def test_more_rows_than_the_stash_holds_are_refused_and_none_is_written() -> None:
    model = speculating("mtp", "float32", "reference", "runtime.max_num_batched_tokens=5")
    rows = dict(model.stage.named_buffers())["mtp_stash.rows"]
    before = rows.clone()
    for counts, row, first, last in ([[6], 0, 0, 5], [[2, 2], 2, 2, 5], [[1], -1, -1, -1]):
        message = f"rows {first} to {last} of the MTP stash: it holds 5; raise runtime.max_num_batched_tokens to "
        with torch.inference_mode(), pytest.raises(ValueError, match=message):
            model.stage.run_layers(next_tokens(model.cache(2, 8), counts, 0, row))
        assert torch.equal(rows, before)


def test_the_benchmark_counts_the_copy_and_nothing_else(run: Run) -> None:
    result = run("task=bench", "bench.what=stash", "model=tiny", "runtime.max_num_batched_tokens=32", "output=json")
    assert result.code == 0
    assert [case["tokens"] for case in result.document["cases"]] == [1, 8, 32]
    for case in result.document["cases"]:
        mix = case["tokens"] * 4 * (128 + 2 * 4 * 128 + 4 + 16)  # y, the stream read and written, post, comb
        assert case["stash_bytes"] == case["tokens"] * 4 * 128 * 4
        assert [case[way]["bytes"] for way in ("none", "in_place")] == [mix, mix]
        assert case["copy"]["bytes"] == mix + 2 * case["stash_bytes"]
        for way in ("none", "copy", "in_place"):
            share = case[way]["bytes"] / case[way]["seconds"] / result.document["copy_bandwidth"]
            assert case[way]["share_of_copy_bandwidth"] == pytest.approx(share)
