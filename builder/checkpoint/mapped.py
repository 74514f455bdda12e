"""Values of a checkpoint through memory maps: a page is read when it is used, and none of it is memory of ours."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path

import torch
from torch import Tensor

from builder.checkpoint.header import Entry, refuse
from builder.components.base.module import TORCH_DTYPES, Share


class Maps:
    """Maps each file once, when first used; read only. One object per load."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[mmap.mmap, Tensor]] = {}

    def region(self, entry: Entry, share: Share) -> Tensor:
        """A view into the file, not to be written to: the part of an entry that ``share`` cuts out."""
        view = self.raw(entry)
        dtype = TORCH_DTYPES[entry.dtype]
        if entry.start % dtype.itemsize:
            view = view.clone()
        view = view.view(dtype).view(entry.shape)
        return view[tuple(slice(start, stop) for start, stop in share)]

    def raw(self, entry: Entry) -> Tensor:
        """All bytes of an entry, uint8."""
        if not entry.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        mapped, whole = self._file(entry)
        page = entry.start - entry.start % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, page, entry.start + entry.nbytes - page)
        return whole[entry.start : entry.start + entry.nbytes]

    def _file(self, entry: Entry) -> tuple[mmap.mmap, Tensor]:
        if entry.file not in self._files:
            self._files[entry.file] = self._map(entry)
        return self._files[entry.file]

    def _map(self, entry: Entry) -> tuple[mmap.mmap, Tensor]:
        try:
            with entry.file.open("rb") as stream:
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            refuse(entry.file, entry.name, "a file that can be mapped", str(error))
        if len(mapped) < entry.start + entry.nbytes:
            refuse(entry.file, entry.name, "a file that nobody changes meanwhile", "it cut since its header was read")
        with warnings.catch_warnings():
            # torch has no read-only tensors; nothing here writes to one of these.
            warnings.simplefilter("ignore", UserWarning)
            return mapped, torch.frombuffer(mapped, dtype=torch.uint8)
