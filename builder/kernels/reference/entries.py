"""How rows of the cache are coded. The layout owns the rounding: what is read is what was rounded when stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from builder.kernels.shapes import split, unflatten

FP8_MOST, FP4_MOST = 448.0, 6.0
ENTRY_BLOCK, KEY_BLOCK = 64, 32
_FP4_STEPS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_FP4_UP_ON_TIE = (False, True, False, True, False, True, False)


@dataclass(frozen=True)
class PlainRows:
    """Rows in a float dtype, ``features`` wide."""

    dtype: torch.dtype

    def encode(self, x: Tensor) -> Tensor:
        """[..., features] -> [..., features]."""
        return x.to(self.dtype)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """[..., features] -> [..., features] in ``dtype``."""
        return rows.to(dtype)

    def query(self, q: Tensor) -> Tensor:
        """Queries against these rows are not rounded."""
        return q


@dataclass(frozen=True)
class FP8Entries:
    """An attention entry in bytes: FP8 in blocks of 64 with a power-of-two scale byte each, the rotary part in BF16."""

    features: int
    rope: int
    width: int

    def encode(self, x: Tensor) -> Tensor:
        """[..., features] -> uint8 [..., width]."""
        nope = self.features - self.rope
        codes, exponents = fp8_blocks(x[..., :nope], ENTRY_BLOCK)
        tail = x[..., nope:].to(torch.bfloat16).contiguous().view(torch.uint8)
        used = nope + 2 * self.rope + exponents.shape[-1]
        return F.pad(torch.cat((codes, tail, exponents), dim=-1), (0, self.width - used))

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [..., width] -> [..., features] in ``dtype``."""
        nope, blocks = self.features - self.rope, -(-(self.features - self.rope) // ENTRY_BLOCK)
        rest = self.width - nope - 2 * self.rope - blocks
        codes, tail, exponents, _ = split(rows, (nope, 2 * self.rope, blocks, rest))
        scales = power_of_two(exponents, dtype).repeat_interleave(ENTRY_BLOCK, dim=-1)[..., :nope]
        values = codes.contiguous().view(torch.float8_e4m3fn).to(dtype) * scales
        return torch.cat((values, tail.contiguous().view(torch.bfloat16).to(dtype)), dim=-1)

    def query(self, q: Tensor) -> Tensor:
        """Queries are not rounded."""
        return q


@dataclass(frozen=True)
class FP8Keys:
    """An indexer key in bytes: FP8 with one float32 scale."""

    features: int

    def encode(self, x: Tensor) -> Tensor:
        """[..., features] -> uint8 [..., features + 4]."""
        codes, exponents = fp8_blocks(x, self.features)
        scale = power_of_two(exponents, torch.float32).contiguous().view(torch.uint8)
        return torch.cat((codes, scale), dim=-1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [..., features + 4] -> [..., features] in ``dtype``."""
        codes, scale = split(rows, (self.features, 4))
        values = codes.contiguous().view(torch.float8_e4m3fn).to(dtype)
        return values * scale.contiguous().view(torch.float32).to(dtype)

    def query(self, q: Tensor) -> Tensor:
        """Queries are not rounded."""
        return q


@dataclass(frozen=True)
class FP4Keys:
    """An indexer key in bytes: rotated by a Hadamard matrix, two FP4 codes a byte, a scale byte per 32 features."""

    features: int

    def encode(self, x: Tensor) -> Tensor:
        """[..., features] -> uint8 [..., features / 2 + ceil(features / 32)]."""
        codes, exponents = fp4_blocks(hadamard(x))
        packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
        return torch.cat((packed, exponents), dim=-1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 -> [..., features] in ``dtype``, still rotated (queries are rotated alike)."""
        packed, exponents = split(rows, (self.features // 2, rows.shape[-1] - self.features // 2))
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        return _fp4_values(codes, exponents, dtype)

    def query(self, q: Tensor) -> Tensor:
        """Queries are rotated and rounded like the keys."""
        return _fp4_values(*fp4_blocks(hadamard(q)), q.dtype)


def fp8_blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """E4M3 codes as bytes [..., n] and exponent bytes [..., ceil(n / block)]; scales are powers of two."""
    parts, most = _blocks(x, block)
    exponents = _exponent(most.clamp(min=1e-4) / FP8_MOST)
    scaled = parts * torch.ldexp(torch.ones_like(most), -exponents).unsqueeze(-1)
    codes = scaled.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten(-2)[..., : x.shape[-1]], (exponents + 127).to(torch.uint8)


def fp4_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 codes [..., n], one a byte, and exponent bytes [..., ceil(n / 32)]; ties go to the even code."""
    parts, most = _blocks(x, KEY_BLOCK)
    exponents = _exponent(most.clamp(min=FP4_MOST * 2.0**-126) / FP4_MOST)
    scaled = parts * torch.ldexp(torch.ones_like(most), -exponents).unsqueeze(-1)
    size = scaled.abs().clamp(max=FP4_MOST)
    codes = torch.zeros_like(size, dtype=torch.uint8)
    for middle, up in zip(_FP4_MIDDLES, _FP4_UP_ON_TIE, strict=True):
        codes += (size >= middle) if up else (size > middle)
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    return codes.flatten(-2)[..., : x.shape[-1]], (exponents + 127).to(torch.uint8)


def power_of_two(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Exponent bytes (E8M0) as values."""
    ones = torch.ones(exponents.shape, dtype=dtype, device=exponents.device)
    return torch.ldexp(ones, exponents.to(torch.int32) - 127)


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Hadamard transform of the last dimension, a power of two wide."""
    width = x.shape[-1]
    shape, half = x.shape, 1
    while half < width:
        a, b = x.reshape(*shape[:-1], width // (2 * half), 2, half).unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).reshape(shape)
        half *= 2
    return x * width**-0.5


def _fp4_values(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    table = torch.tensor((*_FP4_STEPS, *(-step for step in _FP4_STEPS)), dtype=dtype, device=codes.device)
    scales = power_of_two(exponents, dtype).repeat_interleave(KEY_BLOCK, dim=-1)[..., : codes.shape[-1]]
    return table[codes.to(torch.int64)] * scales


def _blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    # [..., n] -> [..., blocks, block], padded with zeros, and the largest magnitude of each block
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    parts = unflatten(F.pad(wide, (0, -x.shape[-1] % block)), -1, (-1, block))
    return parts, parts.abs().amax(-1)


def _exponent(value: Tensor) -> Tensor:
    # ceil(log2(value)), exact at powers of two
    mantissa, exponent = torch.frexp(value)
    return torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-127, 127).to(torch.int32)


Codec = PlainRows | FP8Entries | FP8Keys | FP4Keys
