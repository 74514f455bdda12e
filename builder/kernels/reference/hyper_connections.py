"""Hyper-connections (paper section 2.2): the streams' mix before a sub-layer, the one after it, and the last one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from builder.kernels.reference.precision import exact
from builder.kernels.shapes import split, unflatten


def before(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, iters: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sub-layer's input and the weights of the mix after it.

    stream [tokens, K, hidden]; fn [2K + K^2, K * hidden]; base [2K + K^2]; scale [3].
    Returns x [tokens, hidden], post [tokens, K], comb [tokens, K, K] (from stream j to stream k), the last two exact.
    """
    wide = exact(stream)
    k = stream.shape[1]
    pre, post, comb = split(_mixes(wide, fn, norm_eps), (k, k, k * k))
    pre_base, post_base, comb_base = split(exact(base, stream), (k, k, k * k))
    scales = exact(scale, stream)
    pre = torch.sigmoid(pre * scales[0] + pre_base) + eps
    post = 2 * torch.sigmoid(post * scales[1] + post_base)
    comb = unflatten(comb * scales[2] + comb_base, -1, (k, k))
    x = torch.einsum("tk,tkd->td", pre, wide).to(stream.dtype)
    return x, post, sinkhorn(comb, iters, eps)


def sinkhorn(scores: Tensor, iters: int, eps: float) -> Tensor:
    """Softmax over the rows, then rows and columns in turn to sum one; the last step is a column step."""
    # [tokens, K, K], computed as [K, K, tokens]: sums and quotients then run along memory
    comb = (torch.softmax(scores, dim=-1) + eps).permute(1, 2, 0).contiguous()
    comb = comb / (comb.sum(0, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        comb = comb / (comb.sum(0, keepdim=True) + eps)
    return comb.permute(2, 0, 1).contiguous()


def after(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor, out: Tensor | None = None) -> Tensor:
    """post[k] * y + sum over j of comb[j, k] * stream[j], into ``out`` if given, else into a new tensor.

    y [tokens, hidden]; stream, out [tokens, K, hidden]; post [tokens, K]; comb [tokens, K, K]. Both are written by the
    same operation, so that a given place costs nothing.
    """
    # [tokens, K, hidden]
    kept = torch.bmm(comb.transpose(1, 2), exact(stream))
    added = post.unsqueeze(-1) * exact(y).unsqueeze(1)
    if out is None and (kept.requires_grad or added.requires_grad):
        return (kept + added).to(stream.dtype)  # autograd knows no out=
    return torch.add(kept, added, out=stream.new_empty(stream.shape) if out is None else out)


def head(stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, eps: float, norm_eps: float) -> Tensor:
    """The streams' weighted sum before the output norm: [tokens, K, hidden] -> [tokens, hidden]."""
    wide = exact(stream)
    weights = torch.sigmoid(_mixes(wide, fn, norm_eps) * exact(scale, stream) + exact(base, stream)) + eps
    return torch.einsum("tk,tkd->td", weights, wide).to(stream.dtype)


def _mixes(wide: Tensor, fn: Tensor, norm_eps: float) -> Tensor:
    # One norm over all streams together, applied after the product: [tokens, K, hidden] -> [tokens, mixes]
    flat = wide.flatten(1)
    inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    return F.linear(flat, fn.to(flat.dtype)) * inverse
