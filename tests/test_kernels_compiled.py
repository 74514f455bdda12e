"""Every compiled operation against the reference, in every dtype and in sizes that fit no vector width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from builder.errors import ConfigError
from builder.kernels.compiled import (
    attention,
    experts,
    hyper_connections,
    indexer,
    linear,
    native,
    norm,
    rotary,
    router,
)
from builder.kernels.reference import attention as plain_attention
from builder.kernels.reference import experts as plain_experts
from builder.kernels.reference import hyper_connections as plain_hyper_connections
from builder.kernels.reference import indexer as plain_indexer
from builder.kernels.reference import linear as plain_linear
from builder.kernels.reference import norm as plain_norm
from builder.kernels.reference import rotary as plain_rotary
from builder.kernels.reference import router as plain_router
from builder.kernels.reference.entries import FP8Entries
from builder.kernels.reference.precision import exact_dtype
from builder.kernels.reference.quantization import quantize_fp8
from tests.conftest import Run

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="kernels=compiled needs a C++ compiler"
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CLOSE = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2}
"""Largest difference, of the largest value."""

CHECKPOINTS = Path(__file__).parent / "data" / "checkpoints"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    most = expected.double().abs().max().clamp(min=1.0)
    assert (found.double() - expected.double()).abs().max() <= CLOSE[dtype] * most


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(1,), (2, 3), (5,), (40,)])
def test_linear(dtype: torch.dtype, rows: tuple[int, ...]) -> None:
    x, weight = randn(*rows, 37, dtype=dtype), randn(19, 37, dtype=dtype)
    close(linear.linear(x, weight), plain_linear.linear(x, weight), dtype)
    found, expected = linear.exact_linear(x, weight), plain_linear.exact_linear(x, weight)
    close(found, expected, exact_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 5, 20])
def test_grouped(dtype: torch.dtype, tokens: int) -> None:
    x, weight = randn(tokens, 3, 37, dtype=dtype), randn(3 * 7, 37, dtype=dtype)
    close(linear.grouped(x, weight), plain_linear.grouped(x, weight), dtype)


def test_linear_with_a_quantized_weight_is_the_reference() -> None:
    x, (weight, scale) = randn(3, 128, dtype=torch.float32), quantize_fp8(torch.randn(128, 128), torch.float32)
    assert torch.equal(linear.linear(x, weight, scale), plain_linear.linear(x, weight, scale))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 7), (3, 5, 65), (300, 33)])
def test_norms(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=torch.bfloat16)
    close(norm.rms_norm(x, weight, 1e-6), plain_norm.rms_norm(x, weight, 1e-6), dtype)
    close(norm.unit_norm(x, 1e-6), plain_norm.unit_norm(x, 1e-6), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("x", "turn"), [((5, 11), (5, 3)), ((5, 3, 11), (5, 1, 3)), ((2, 4, 3, 6), (2, 4, 1, 3)),
                                         ((2, 4, 3, 6), (4, 1, 3))])  # fmt: skip
def test_rotary(dtype: torch.dtype, back: bool, x: tuple[int, ...], turn: tuple[int, ...]) -> None:
    values, angle = randn(*x, dtype=dtype), randn(*turn, dtype=exact_dtype(dtype))
    pair = (angle.cos(), angle.sin())
    close(rotary.rotate(values, pair, back=back), plain_rotary.rotate(values, pair, back=back), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "k", "hidden"), [(1, 4, 64), (70, 4, 300), (3, 3, 7), (2, 1, 5)])
def test_hyper_connections(dtype: torch.dtype, tokens: int, k: int, hidden: int) -> None:
    wide, n = exact_dtype(dtype), 2 * k + k * k
    stream = randn(tokens, k, hidden, dtype=dtype)
    fn, base, scale = randn(n, k * hidden, dtype=wide), randn(n, dtype=wide), randn(3, dtype=wide)
    settings: dict[str, Any] = {"iters": 20, "eps": 1e-6, "norm_eps": 1e-6}
    ours = hyper_connections.before(stream, fn, base, scale, **settings)
    theirs = plain_hyper_connections.before(stream, fn, base, scale, **settings)
    for found, expected in zip(ours, theirs, strict=True):
        close(found, expected, dtype if found.dtype == dtype else wide)
    y, out = randn(tokens, hidden, dtype=dtype), torch.empty_like(stream)
    expected = plain_hyper_connections.after(y, stream, *theirs[1:])
    close(hyper_connections.after(y, stream, *theirs[1:]), expected, dtype)
    assert hyper_connections.after(y, stream, *theirs[1:], out=out) is out
    close(out, expected, dtype)
    head = partial(plain_hyper_connections.head, eps=1e-6, norm_eps=1e-6)
    ours = hyper_connections.head(stream, fn[:k], base[:k], scale[:1], eps=1e-6, norm_eps=1e-6)
    close(ours, head(stream, fn[:k], base[:k], scale[:1]), dtype)


def test_a_stream_of_equal_copies() -> None:
    # as the embedding gives it: expanded, not copied
    stream = randn(3, 1, 8, dtype=torch.float32).expand(-1, 4, -1)
    fn, base, scale = torch.randn(24, 32), torch.randn(24), torch.randn(3)
    settings: dict[str, Any] = {"iters": 3, "eps": 1e-6, "norm_eps": 1e-6}
    x, _, _ = hyper_connections.before(stream, fn, base, scale, **settings)
    close(x, plain_hyper_connections.before(stream, fn, base, scale, **settings)[0], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(8, 64), (3, 20), (17, 9)])
@pytest.mark.parametrize("starts", [(0, 9), (300, 2)])
def test_attention(dtype: torch.dtype, heads: int, width: int, starts: tuple[int, int]) -> None:
    tokens, reach, entries = 5, 7, 11
    queries, window = randn(2, tokens, heads, width, dtype=dtype), randn(2, reach + tokens, width, dtype=dtype)
    sink, first = randn(heads, dtype=torch.float32), torch.tensor(starts)
    # a view of a larger table, as the cache gives it
    stored = randn(3, 20, width, dtype=dtype)[1:, :entries]
    ready, picks = torch.randint(0, entries + 1, (2, tokens)), torch.randint(-1, entries, (2, tokens, 4))
    for table, chosen in ((None, None), (stored[:, :0], None), (stored, None), (stored, picks)):
        found, expected = (
            attend(queries, window, first, sink, table, ready, chosen)
            for attend in (attention.attend, plain_attention.attend)
        )
        close(found, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_coded_entries(dtype: torch.dtype) -> None:
    codec, tokens = FP8Entries(features=80, rope=16, width=104), 300
    queries, window = randn(2, tokens, 3, 80, dtype=dtype), randn(2, 7 + tokens, 80, dtype=dtype)
    stored, ready = codec.encode(randn(2, 11, 80, dtype=dtype)), torch.randint(0, 12, (2, tokens))
    picks = torch.randint(-1, 11, (2, tokens, 4))
    for chosen in (None, picks):
        first, sink = torch.tensor([0, 40]), randn(3, dtype=torch.float32)
        found, expected = (
            attend(queries, window, first, sink, stored, ready, chosen, codec.decode)
            for attend in (attention.attend, plain_attention.attend)
        )
        close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "entries", "count"), [(1, 5, 5), (300, 70, 9), (4, 33, 1)])
def test_indexer(dtype: torch.dtype, tokens: int, entries: int, count: int) -> None:
    # small whole numbers: the scores are exact, and many are equal
    queries, keys = (torch.randint(-2, 3, shape).to(dtype) for shape in ((2, tokens, 3, 8), (2, entries, 8)))
    weights, ready = torch.randint(-2, 3, (2, tokens, 3)).to(dtype), torch.randint(0, entries + 1, (2, tokens))
    found = indexer.pick(queries, keys, weights, ready, count)
    expected = plain_indexer.pick(queries, keys, weights, ready, count)
    # the reference may have what is not ready among its picks, in other places: compare the sets
    assert torch.equal(found.sort(-1).values, expected.sort(-1).values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_router(dtype: torch.dtype) -> None:
    x, weight = randn(50, 24, dtype=dtype), randn(13, 24, dtype=torch.bfloat16)
    scored = plain_router.scores(x, weight)
    close(router.scores(x, weight), scored, exact_dtype(dtype))
    bias = randn(13, dtype=torch.float32)
    chosen = router.choose(scored, bias, 4)
    assert torch.equal(chosen, plain_router.choose(scored, bias, 4))
    close(router.weigh(scored, chosen, 1.5), plain_router.weigh(scored, chosen, 1.5), exact_dtype(dtype))


def test_the_lowest_index_wins() -> None:
    scored = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    chosen = router.choose(scored, torch.zeros(6), 2)
    assert chosen.tolist() == [[1, 2], [0, 1]]


def test_not_a_number_is_no_crash() -> None:
    scored = torch.full((4, 300), float("nan"))
    scored[:, ::3] = 1.0
    chosen = router.choose(scored, torch.zeros(300), 150)
    assert bool(((chosen >= 0) & (chosen < 300)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "first", "rank_experts"), [(1, 0, 6), (7, 0, 6), (90, 0, 6), (30, 2, 3), (5, 6, 2)])
def test_experts(dtype: torch.dtype, tokens: int, first: int, rank_experts: int) -> None:
    x, weights = randn(tokens, 20, dtype=dtype), randn(tokens, 3, dtype=exact_dtype(dtype)).abs()
    chosen = torch.stack([torch.randperm(6)[:3] for _ in range(tokens)])
    w1, w3 = (randn(rank_experts, 11, 20, dtype=dtype) for _ in range(2))
    w2 = randn(rank_experts, 20, 11, dtype=dtype)
    matrices = ((w1, None), (w2, None), (w3, None))
    expected = plain_experts.experts(x, chosen, weights, *matrices, 2.0, first)
    close(experts.experts(x, chosen, weights, *matrices, 2.0, first), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 30])
def test_shared_expert(dtype: torch.dtype, tokens: int) -> None:
    x = randn(tokens, 20, dtype=dtype)
    w1, w2, w3 = ((randn(*shape, dtype=dtype), None) for shape in ((11, 20), (20, 11), (11, 20)))
    close(experts.expert(x, w1, w2, w3, 2.0), plain_experts.expert(x, w1, w2, w3, 2.0), dtype)


def test_gradients_go_through_the_reference() -> None:
    with torch.inference_mode(mode=False), torch.enable_grad():
        x, weight = torch.randn(2, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        norm.rms_norm(x, weight, 1e-6).square().sum().backward()
        assert x.grad is not None
        assert weight.grad is not None


@pytest.mark.parametrize("name", ["tiny-flash", "tiny-fp4"])
def test_official_outputs(run: Run, name: str) -> None:
    result = run("task=verify", f"checkpoint={CHECKPOINTS / name}", "spec=mtp", "kernels=compiled", "output=json")
    assert result.code == 0, result.err
    assert result.document["ok"]


def test_no_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no-such-compiler.*kernels=reference"):
        native.operations.__wrapped__()


def test_what_does_not_compile_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "kernels.cpp"
    source.write_text("#error not today\n")
    monkeypatch.setattr(native, "SOURCE", source)
    with pytest.raises(ConfigError, match="not today"):
        native.operations.__wrapped__()
    assert not list((tmp_path / "builder").iterdir())
