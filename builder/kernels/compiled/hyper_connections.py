"""Hyper-connections: each mix in one pass over the streams."""

from __future__ import annotations

from torch import Tensor

from builder.kernels.compiled.linear import exact_linear
from builder.kernels.compiled.native import operations, usable
from builder.kernels.reference import hyper_connections as reference
from builder.kernels.reference.precision import exact


def before(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iters: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``reference.hyper_connections.before``."""
    if not usable(stream):
        return reference.before(stream, fn, base, scale, iters=iters, eps=eps, norm_eps=norm_eps)
    flow = stream.contiguous()
    mixes = _mixes(flow, fn)
    return operations().hc_before(flow, mixes, exact(base, flow), exact(scale, flow), iters, eps, norm_eps)


def after(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, out: Tensor | None = None) -> Tensor:
    """As ``reference.hyper_connections.after``."""
    same = y.dtype == stream.dtype == (stream if out is None else out).dtype
    if not (usable(stream) and same and (out is None or out.is_contiguous())):
        return reference.after(y, stream, post, comb, out)
    written = stream.new_empty(stream.shape) if out is None else out
    operations().hc_after(y.contiguous(), stream.contiguous(), post, comb, written)
    return written


def head(stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, eps: float, norm_eps: float) -> Tensor:
    """As ``reference.hyper_connections.head``."""
    if not usable(stream):
        return reference.head(stream, fn, base, scale, eps=eps, norm_eps=norm_eps)
    flow = stream.contiguous()
    return operations().hc_head(flow, _mixes(flow, fn), exact(base, flow), exact(scale, flow), eps, norm_eps)


def _mixes(stream: Tensor, fn: Tensor) -> Tensor:
    # The product before its norm: [tokens, K, hidden] -> [tokens, mixes]
    return exact_linear(stream.flatten(1), fn)
