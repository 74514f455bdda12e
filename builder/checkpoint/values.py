"""From the files into memory: copied, cast or dequantized, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from builder.checkpoint.header import refuse
from builder.checkpoint.mapped import Maps
from builder.checkpoint.sources import Job, Source
from builder.kernels.reference.quantization import dequantize_fp4, dequantize_fp8
from builder.schema.model import FP8_BLOCK

_CHUNK_VALUES = 1 << 22
"""Values that are dequantized at once: what lies between the files and the stage stays small."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fill_from(maps: Maps, job: Job, out: Tensor, below: int | None = None) -> Iterator[int]:
    """Fill ``out``, the rank's share of a tensor; yields the bytes taken from the files after each part.

    below: values must be at least 0 and less than that (a table of expert numbers); else CheckpointError.
    """
    for source in job.sources:
        target = out if source.index is None else out[source.index]
        if source.scale is None:
            _copy(maps.region(source.entry, source.share), target)
        else:
            _dequantize(maps, source, target)
        if below is not None:
            _check_range(source, target, below)
        yield source.nbytes


def values_of(maps: Maps, source: Source, dtype: torch.dtype) -> Tensor:
    """The values of a source in ``dtype``; a view into the file where nothing has to be changed."""
    if source.scale is None:
        return maps.region(source.entry, source.share).to(dtype)
    rows, packed = (stop - start for start, stop in source.share)
    out = torch.empty(rows, 2 * packed if source.entry.dtype == "I8" else packed, dtype=dtype)
    _dequantize(maps, source, out)
    return out


def _copy(values: Tensor, out: Tensor) -> None:
    if values.dtype == out.dtype:
        # As bits: float8 has few operations, and a NaN keeps its payload.
        bits = _BITS[out.element_size()]
        values, out = values.view(bits), out.view(bits)
    out.copy_(values)


def _dequantize(maps: Maps, source: Source, out: Tensor) -> None:
    """Write the values of a quantized matrix [rows, columns] in bands of rows."""
    assert source.scale is not None, "a plain source is copied"
    weight = maps.region(source.entry, source.share)
    scale = maps.region(source.scale, source.scale_share)
    row, column = source.first
    rows, columns = out.shape
    band = max(1, _CHUNK_VALUES // max(1, columns) // FP8_BLOCK) * FP8_BLOCK
    start = 0
    while start < rows:
        stop = min(rows, (start + row) // FP8_BLOCK * FP8_BLOCK + band - row)
        if source.entry.dtype == "I8":
            # A byte holds two columns, so that a part may begin in the middle of one.
            odd = column % 2
            values = dequantize_fp4(weight[start:stop], scale[start:stop], out.dtype, column=column - odd)
            out[start:stop].copy_(values[:, odd : odd + columns])
        else:
            first, last = (start + row) // FP8_BLOCK, -(-(stop + row) // FP8_BLOCK)
            into = (start + row) % FP8_BLOCK
            values = dequantize_fp8(weight[start:stop], scale[first:last], out.dtype, row=into, column=column)
            out[start:stop].copy_(values)
        start = stop


def _check_range(source: Source, values: Tensor, below: int) -> None:
    if not values.numel():
        return
    low, high = (int(value) for value in values.aminmax())
    if low < 0 or high >= below:
        refuse(source.entry.file, source.entry.name, f"numbers of experts, 0 to {below - 1}", f"{low} to {high}")
