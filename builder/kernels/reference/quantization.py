"""Weights as the releases store them, and what they are worth: block FP8, packed FP4, and their scales.

A value is the stored number times the scale of its block. FP8 (E4M3) has a scale per block of 128 x 128, FP4 (E2M1,
two in a byte) one per 32 columns of a row. Scales are powers of two: a byte (E8M0), or F32 in the Base releases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from builder.schema.model import FP4_BLOCK, FP8_BLOCK

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the codes 0 to 7 are worth; 8 to 15 are the same, negated."""

_E2M1_MOST, _E4M3_MOST = 6.0, 448.0
_E8M0_BIAS = 127
_SMALLEST_SCALE = 2.0**-_E8M0_BIAS


def decode_e8m0(scale: Tensor) -> Tensor:
    """F32 values of E8M0 (or uint8) scales: 2 to the power of byte - 127, and NaN for byte 255."""
    return scale.view(torch.float8_e8m0fnu).to(torch.float32)


def decode_e4m3(weight: Tensor) -> Tensor:
    """F32 values of E4M3 (or uint8) codes; 0x7f and 0xff are NaN."""
    return weight.view(torch.float8_e4m3fn).to(torch.float32)


def decode_e2m1(packed: Tensor) -> Tensor:
    """F32 values [..., 2 n] of packed FP4 codes [..., n]: the low half of a byte is the even column."""
    # A pair of F32 travels as one complex64, so that a byte is one look-up.
    pairs = _pair_table(packed.device).index_select(0, packed.contiguous().view(torch.uint8).flatten().int())
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


def dequantize_fp8(
    weight: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32, *, row: int = 0, column: int = 0
) -> Tensor:
    """Values of E4M3 weights [..., out, in] with scales [..., blocks of rows, blocks of columns] (E8M0 or F32).

    row, column: where in its first block the weight begins, if it was cut out of a larger one.
    """
    exact = _working_dtype(dtype)
    values = decode_e4m3(weight).to(exact)
    scales = _spread(_scale_values(scale).to(exact), FP8_BLOCK, column, weight.shape[-1])
    first = min(FP8_BLOCK - row, weight.shape[-2]) if row else 0
    values[..., :first, :].mul_(scales[..., :1, :])
    rest, scales = values[..., first:, :], scales[..., int(first > 0) :, :]
    whole = rest.shape[-2] // FP8_BLOCK
    _in_blocks(rest[..., : whole * FP8_BLOCK, :], -2, FP8_BLOCK).mul_(scales[..., :whole, None, :])
    rest[..., whole * FP8_BLOCK :, :].mul_(scales[..., whole : whole + 1, :])
    return values.to(dtype)


def dequantize_fp4(weight: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32, *, column: int = 0) -> Tensor:
    """Values [..., out, in] of packed FP4 weights [..., out, in / 2] with scales [..., out, blocks] (E8M0 or F32).

    column: where in its first block the weight begins, if it was cut out of a larger one.
    """
    exact = _working_dtype(dtype)
    values = decode_e2m1(weight).to(exact)
    scales = _scale_values(scale).to(exact)
    if column == 0 and values.shape[-1] % FP4_BLOCK == 0:
        _in_blocks(values, -1, FP4_BLOCK).mul_(scales[..., None])
    else:
        values.mul_(_spread(scales, FP4_BLOCK, column, values.shape[-1]))
    return values.to(dtype)


def dequantize(weight: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of a whole quantized weight, told apart by its dtype: int8 is packed FP4, float8 is block FP8."""
    if weight.dtype == torch.int8:
        return dequantize_fp4(weight, scale, dtype)
    return dequantize_fp8(weight, scale, dtype)


def quantize_fp8(values: Tensor, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """E4M3 weights [..., out, in] and scales [..., blocks, blocks] of values; the inverse of dequantize_fp8.

    Values that came from FP8 come back equal; others are rounded (``torch.equal`` of the way back tells).
    """
    tiles = _in_blocks(_in_blocks(_padded(values.float()), -1, FP8_BLOCK), -3, FP8_BLOCK)
    scale = _scale_for(tiles.abs().amax(dim=(-3, -1)), _E4M3_MOST)
    codes = (tiles / scale[..., :, None, :, None]).flatten(-2).flatten(-3, -2).to(torch.float8_e4m3fn)
    cut = codes.view(torch.uint8)[..., : values.shape[-2], : values.shape[-1]].contiguous()
    return cut.view(torch.float8_e4m3fn), scale.to(scale_dtype)


def quantize_fp4(values: Tensor, scale_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Packed FP4 weights [..., out, in / 2] and scales [..., out, in / 32] of values; the inverse of dequantize_fp4.

    Values that came from FP4 come back equal; others go to the nearest code, of two equally near to the even one.
    """
    blocks = _in_blocks(values.float(), -1, FP4_BLOCK)
    scale = _scale_for(blocks.abs().amax(dim=-1), _E2M1_MOST)
    codes = encode_e2m1((blocks / scale[..., None]).flatten(-2))
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.int8), scale.to(scale_dtype)


def encode_e2m1(values: Tensor) -> Tensor:
    """The nearest E2M1 codes 0 to 15 of values, uint8; halfway between two the even code, beyond 6 the last one."""
    table = torch.tensor(E2M1_VALUES, device=values.device)
    size = values.abs().contiguous()
    middles = (table[1:] + table[:-1]) / 2
    below = torch.bucketize(size, middles, right=False)
    above = torch.bucketize(size, middles, right=True)
    code = torch.where(below % 2 == 0, below, above)
    return (code + 8 * torch.signbit(values)).to(torch.uint8)


def _in_blocks(values: Tensor, dim: int, size: int) -> Tensor:
    """A view in which dimension ``dim`` (counted from the end) is two, [blocks, size]."""
    before, after = values.shape[:dim], values.shape[values.dim() + dim + 1 :]
    return values.view(*before, values.shape[dim] // size, size, *after)


def _pair_table(device: torch.device) -> Tensor:
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=device)
    codes = torch.cat((values, -values))
    pairs = torch.stack((codes.repeat(16), codes.repeat_interleave(16)), dim=1)
    return pairs.view(torch.complex64).flatten()


def _scale_values(scale: Tensor) -> Tensor:
    return scale if scale.dtype == torch.float32 else decode_e8m0(scale)


def _spread(scales: Tensor, block: int, first: int, columns: int) -> Tensor:
    """One scale per column of [..., columns], which begin at ``first`` of the first block."""
    return scales.repeat_interleave(block, dim=-1)[..., first : first + columns]


def _scale_for(largest: Tensor, most: float) -> Tensor:
    """The smallest power of two that brings ``largest`` to at most ``most``: nothing that has a code loses it."""
    fraction, exponent = torch.frexp(largest / most)
    exponent = torch.where(fraction == 0.5, exponent - 1, exponent)
    scale = torch.ldexp(torch.ones_like(largest), exponent).clamp(min=_SMALLEST_SCALE)
    return torch.where(largest > 0, scale, torch.ones_like(scale))


def _padded(values: Tensor) -> Tensor:
    rows, columns = values.shape[-2:]
    return torch.nn.functional.pad(values, (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
