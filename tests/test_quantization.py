"""Stored codes against published tables and torch's own conversions, and the way back."""

import pytest
import torch

from builder.kernels.reference import quantization as q

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
BYTES = torch.arange(256, dtype=torch.uint8)


def bits(values: torch.Tensor) -> torch.Tensor:
    """Values as bits, so that the sign of zero counts."""
    return values.float().view(torch.int32)


def codes(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random E4M3 codes without NaN."""
    drawn = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return torch.where(drawn & 0x7F == 0x7F, 0, drawn).to(torch.uint8).view(torch.float8_e4m3fn)


def scales(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random powers of two."""
    drawn = torch.randint(100, 150, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return drawn.view(torch.float8_e8m0fnu).to(dtype)


def test_all_fp4_codes_in_both_halves_of_a_byte() -> None:
    values = q.decode_e2m1(BYTES.view(torch.int8))
    expected = torch.tensor([[E2M1[byte & 15], E2M1[byte >> 4]] for byte in range(256)]).flatten()
    assert torch.equal(bits(values), bits(expected))


def test_all_fp8_codes_are_torchs() -> None:
    values = q.decode_e4m3(BYTES)
    own = torch.tensor([(-1) ** (b >> 7) * _e4m3(b & 0x7F) for b in range(256)])
    torch.testing.assert_close(values, BYTES.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values, own, rtol=0, atol=0, equal_nan=True)


def _e4m3(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    if code == 0x7F:
        return float("nan")
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


def test_all_e8m0_codes_are_torchs() -> None:
    values = q.decode_e8m0(BYTES)
    torch.testing.assert_close(values, BYTES.view(torch.float8_e8m0fnu).float(), rtol=0, atol=0, equal_nan=True)
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert values[255].isnan()


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (3, 200, 300), (2, 2, 130, 5), (5, 7)])
@pytest.mark.parametrize("kind", [torch.float8_e8m0fnu, torch.float32])
def test_fp8_blocks(shape: tuple[int, ...], kind: torch.dtype) -> None:
    weight = codes(shape)
    scale = scales((*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128)), kind)
    spread = scale.float().repeat_interleave(128, -2).repeat_interleave(128, -1)
    expected = weight.float() * spread[..., : shape[-2], : shape[-1]]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert torch.equal(q.dequantize(weight, scale, dtype), expected.to(dtype))
    again, own = q.quantize_fp8(expected, kind)
    assert own.dtype == kind
    assert torch.equal(bits(q.dequantize(again, own)), bits(expected))


@pytest.mark.parametrize(("top", "bottom", "left", "right"), [(0, 300, 0, 300), (100, 140, 130, 131), (128, 290, 5, 7)])
def test_a_cut_of_fp8_blocks(top: int, bottom: int, left: int, right: int) -> None:
    weight, scale = codes((300, 300)), scales((3, 3), torch.float32)
    blocks = scale[top // 128 : -(-bottom // 128), left // 128 : -(-right // 128)]
    cut = q.dequantize_fp8(weight[top:bottom, left:right], blocks, row=top % 128, column=left % 128)
    assert torch.equal(cut, q.dequantize(weight, scale)[top:bottom, left:right])


@pytest.mark.parametrize("shape", [(4, 32), (3, 5, 96)])
def test_fp4_rows(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randint(-128, 128, (*shape[:-1], shape[-1] // 2), dtype=torch.int8, generator=generator)
    scale = scales((*shape[:-1], shape[-1] // 32), torch.float8_e8m0fnu)
    expected = q.decode_e2m1(weight) * scale.float().repeat_interleave(32, -1)
    assert torch.equal(q.dequantize(weight, scale), expected)
    assert torch.equal(q.dequantize(weight, scale, torch.bfloat16), expected.bfloat16())
    again, own = q.quantize_fp4(expected, torch.float8_e8m0fnu)
    assert torch.equal(bits(q.dequantize(again, own)), bits(expected))


def test_encoding_takes_the_nearest_code() -> None:
    values = torch.linspace(-8, 8, 1601)
    table = torch.tensor(E2M1[:8])
    near = q.decode_e2m1(q.encode_e2m1(values).view(torch.int8))[::2]
    assert torch.equal((values.abs()[:, None] - table).abs().amin(1), (values.abs() - near.abs()).abs())
    halfway = q.encode_e2m1(torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0]))
    assert halfway.tolist() == [0, 2, 2, 4, 4, 6, 6, 14]


def test_nothing_but_zeros_and_extremes_survive_the_way_back() -> None:
    values = torch.zeros(1, 64)
    values[0, 32:] = 2.0**-130
    for encode in (q.quantize_fp4, q.quantize_fp8):
        assert torch.equal(q.dequantize(*encode(values, torch.float8_e8m0fnu)), values * (encode is q.quantize_fp8))
