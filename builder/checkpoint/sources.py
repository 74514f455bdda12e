"""Where the files keep what a stage declares: every declared tensor is matched with the files' and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from builder.checkpoint.folder import Folder
from builder.checkpoint.header import Entry, described, fault
from builder.checkpoint.names import Layout, fused_experts, is_norm, kept_exact
from builder.components.base.module import Share
from builder.components.base.spec import DTYPE_BYTES, Declared, Tensor
from builder.schema.model import FP4_BLOCK, FP8_BLOCK

FLOATS = ("BF16", "F16", "F32")
QUANTIZED = {"F8_E4M3", "I8"}

_INTEGERS = ("I32", "I64")


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a file's tensor, and of its scales if it is to be dequantized.

    index: where it goes in a stacked tensor, None for the whole; share, scale_share: in elements of the two entries;
    first: the rows and columns of the first scale block that the part leaves out.
    """

    entry: Entry
    share: Share
    index: int | None = None
    scale: Entry | None = None
    scale_share: Share = ()
    first: tuple[int, int] = (0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes from the files."""
        size = _bytes_of(self.share, self.entry.dtype)
        return size if self.scale is None else size + _bytes_of(self.scale_share, self.scale.dtype)


@dataclass(frozen=True, slots=True)
class Job:
    """One tensor to fill, and what with."""

    declared: Declared
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """One file tensor that holds a declared one or a part of it: expert ``index`` or, if None, all of it.

    part, parts: which of equal parts of the rows, where several tensors stand in one.
    """

    name: str
    index: int | None = None
    part: int = 0
    parts: int = 1

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        if self.index is not None:
            return tensor.shape[1:]
        if self.parts == 1:
            return tensor.shape
        experts, rows, columns = tensor.shape
        return experts, rows * self.parts, columns

    def share(self, tensor: Tensor, share: Share) -> Share | None:
        """The rank's share in elements of the file tensor; None if the rank holds nothing of it."""
        if self.index is not None:
            start, stop = share[0]
            return share[1:] if start <= self.index < stop else None
        if self.parts == 1:
            return share
        offset = self.part * tensor.shape[1]
        return share[0], (share[1][0] + offset, share[1][1] + offset), share[2]


@dataclass(slots=True)
class Matcher:
    """Matches declared tensors with the tensors of a folder. Faults are collected; names in ``used`` were asked for.

    stored: what the files hold by the model's configuration, by path; share_of: the rank's share of a declared tensor;
    converts: whether plain weights of another precision are taken and quantized ones dequantized (runtime.weights);
    layout_dtype: the dtype of most plain tensors in the files.
    """

    folder: Folder
    layout: Layout
    stored: Mapping[str, Declared]
    share_of: Callable[[Tensor], Share]
    converts: bool
    layout_dtype: str = "F32"
    faults: list[str] = field(default_factory=list[str])
    used: set[str] = field(default_factory=set[str])

    def job(self, declared: Declared) -> Job:
        """Match one tensor."""
        share = self.share_of(declared.tensor)
        found = (self._source(place, declared, share) for place in self._places(declared))
        return Job(declared, tuple(source for source in found if source is not None))

    def _places(self, declared: Declared) -> Iterator[_Place]:
        tensor = declared.tensor
        if tensor.stacked and self.layout.fused and declared.name.startswith("layers."):
            head, matrix, _ = declared.name.rsplit(".", 2)
            name, part, parts = fused_experts(head.removesuffix(".ffn.experts"), matrix)
            yield _Place(name, None, part, parts)
            return
        for index, official in enumerate(declared.official_names()):
            yield _Place(self._spelled(official), index if tensor.stacked else None)

    def _spelled(self, official: str) -> str:
        # A scale has no name in a layout of plain weights: it is then missing under its official one.
        try:
            return self.layout.spelled(official)
        except KeyError:
            return official

    def _source(self, place: _Place, declared: Declared, share: Share) -> Source | None:
        self.used.add(place.name)
        tensor, entry = declared.tensor, self.folder.entries.get(place.name)
        stored = self.stored.get(declared.path, declared).tensor
        wanted = described(stored.dtype, place.shape(stored))
        if entry is None:
            self.faults.append(fault(self.folder.path, place.name, wanted, "no such tensor"))
            return None
        if stored.dtype in QUANTIZED and tensor.dtype != stored.dtype and entry.dtype not in FLOATS:
            return self._quantized(place, entry, declared, share)
        if entry.dtype not in self._accepted(declared, stored) or entry.shape != place.shape(tensor):
            self.faults.append(
                fault(entry.file, entry.name, wanted, entry.words, self._advice(declared, stored, entry))
            )
            return None
        cut = place.share(tensor, share)
        return None if cut is None else Source(entry, cut, self._index(place, share))

    def _quantized(self, place: _Place, entry: Entry, declared: Declared, share: Share) -> Source | None:
        """A quantized matrix that is wanted plain."""
        stored = self.stored[declared.path].tensor
        scale_tensor = self.stored[f"{declared.path.removesuffix('weight')}scale"].tensor
        name = f"{place.name.removesuffix('weight')}scale"
        self.used.add(name)
        scale = self.folder.entries.get(name)
        complete = self._is(entry, stored, place) and self._is(scale, scale_tensor, place, name)
        cut = place.share(declared.tensor, share)
        if not complete or scale is None or cut is None:
            return None
        packed, blocks, first = _blocks(cut, entry.dtype)
        return Source(entry, packed, self._index(place, share), scale, blocks, first)

    def _is(self, entry: Entry | None, tensor: Tensor, place: _Place, name: str = "") -> bool:
        shape = place.shape(tensor)
        if entry is not None and (entry.dtype, entry.shape) == (tensor.dtype, shape):
            return True
        file, found = (self.folder.path, "no such tensor") if entry is None else (entry.file, entry.words)
        advice = "" if entry is None else _quantization_advice(tensor, entry)
        self.faults.append(fault(file, name or place.name, described(tensor.dtype, shape), found, advice))
        return False

    def _accepted(self, declared: Declared, stored: Tensor) -> tuple[str, ...]:
        """The dtypes in which a tensor that is not dequantized may be stored."""
        if stored.dtype in _INTEGERS:
            return _INTEGERS
        if stored.dtype not in FLOATS and not (self.converts and declared.tensor.dtype in FLOATS):
            return (stored.dtype,)
        if not self.layout.official and (kept_exact(declared.name) or is_norm(declared.name)):
            # transformers keeps most of these in F32 whatever the rest is, and takes them in either.
            return ("F32", self.layout_dtype)
        if kept_exact(declared.name):
            return ("F32",)
        if self.converts:
            # Of two that are equally wide only the one that config.json names: nothing else tells them apart.
            size = DTYPE_BYTES[stored.dtype]
            return (stored.dtype, *(word for word in FLOATS if DTYPE_BYTES[word] != size))
        return (stored.dtype,)

    def _advice(self, declared: Declared, stored: Tensor, entry: Entry) -> str:
        convertible = stored.dtype in (*FLOATS, *QUANTIZED) and not kept_exact(declared.name)
        if entry.dtype in FLOATS and entry.dtype != stored.dtype and convertible and not self.converts:
            word = "float32" if entry.dtype == "F32" else "bfloat16"
            return f"runtime.weights={word} takes plain weights of either precision"
        return _quantization_advice(stored, entry)

    @staticmethod
    def _index(place: _Place, share: Share) -> int | None:
        return None if place.index is None else place.index - share[0][0]


def _blocks(share: Share, dtype: str) -> tuple[Share, Share, tuple[int, int]]:
    """Of a cut of values: the cut of the stored elements, of the scales, and what the first block has before it."""
    (top, bottom), (left, right) = share
    if dtype == "I8":
        packed = (top, bottom), (left // 2, -(-right // 2))
        return packed, ((top, bottom), (left // FP4_BLOCK, -(-right // FP4_BLOCK))), (0, left % FP4_BLOCK)
    rows = (top // FP8_BLOCK, -(-bottom // FP8_BLOCK))
    return share, (rows, (left // FP8_BLOCK, -(-right // FP8_BLOCK))), (top % FP8_BLOCK, left % FP8_BLOCK)


def _bytes_of(share: Share, dtype: str) -> int:
    size = DTYPE_BYTES[dtype]
    for start, stop in share:
        size *= stop - start
    return size


def _quantization_advice(stored: Tensor, entry: Entry) -> str:
    """What to look at where files and config.json disagree on the quantization."""
    if {stored.dtype, entry.dtype} == QUANTIZED:
        kind = "FP4" if entry.dtype == "I8" else "FP8"
        return f"the files hold {kind} weights, and config.json says otherwise (expert_dtype)"
    if entry.dtype in QUANTIZED and stored.dtype in FLOATS:
        return "config.json has no quantization_config"
    return ""
