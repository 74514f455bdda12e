"""How a part of the model says what it is made of: tensors, children, cache rows. Declared once, never torch.

The planner sums a declaration, the builder makes parameters from it, the reader fetches what it lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "I32": 4,
    "I64": 8,
}
"""Bytes of one element, by the names that safetensors headers use."""


class Origin(Enum):
    """Where the content of a tensor comes from."""

    CHECKPOINT = "checkpoint"
    DERIVED = "derived"
    RUNTIME = "runtime"


class Axis(Enum):
    """What a dimension counts; the assembly decides from it which ranks divide the dimension."""

    VOCABULARY = "vocabulary"
    HEADS = "heads"
    INDEX_HEADS = "index heads"
    EXPERTS = "experts"
    EXPERT_INNER = "expert inner"
    SHARED_INNER = "shared inner"


class Join(Enum):
    """How the outputs of ranks that hold shares of a part become the output of the whole part."""

    SUM = "partial sums are added"
    CONCATENATE = "slices of the last dimension are put side by side"
    LOOK_UP = "each id is looked up where its row is"
    SCORES = "partial scores are added before the choice"
    EXCHANGE = "tokens travel to their experts and back"


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension ``dim`` holds ``count`` things named ``key`` in the model configuration, which stay whole.

    ``block``: where the dimension is cut, a rank's share must be a multiple of this many elements (one scale block).
    """

    dim: int
    axis: Axis
    count: int
    key: str
    block: int = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the unsplit model. ``shape`` in elements of ``dtype``.

    values: logical values per element: 2 for packed FP4, 0 for scales and tables, which are no parameters.
    stacked: dimension 0 stacks that many official tensors; the index stands before the last two words of the name.
    source: the official name when it is not the tensor's own path (a second copy of the embedding).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    splits: tuple[Split, ...] = ()
    origin: Origin = Origin.CHECKPOINT
    values: int = 1
    stacked: int = 0
    source: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def stack(self, count: int, split: Split) -> Tensor:
        """The same tensor for ``count`` experts in one: [count, *shape]."""
        moved = tuple(replace(s, dim=s.dim + 1) for s in self.splits)
        return replace(self, shape=(count, *self.shape), splits=(split, *moved), stacked=count)


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """What decides the bytes of a cache row: the layout, the two dtypes, and the drafts per step (k)."""

    layout: str
    entry_dtype: str
    open_dtype: str
    drafts: int


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Rows that a part keeps for each request: ``fixed`` of them, or one per ``ratio`` tokens when ratio > 0.

    code: how features become a row of ``width`` elements of ``dtype``: plain, fp8_entry, fp8_key or fp4_key;
    features: values that a row stands for; rope: how many of them, the last, are the rotary part.
    """

    name: str
    width: int
    dtype: str
    fixed: int = 0
    ratio: int = 0
    code: str = "plain"
    features: int = 0
    rope: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * DTYPE_BYTES[self.dtype]


class Account(Enum):
    """The line of a rank's memory report that a part is booked on."""

    WEIGHTS = "weights"
    DRAFTER = "drafter"
    MTP_STASH = "mtp_stash"
    AUX_HIDDEN = "aux_hidden"
    BUFFERS = "buffers"


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A part of the model. Subclasses add the sizes they need and answer tensors(), children() and cache().

    module: the class that computes it, as ``package.module:Class``.
    account: the report line of this part and of what is in it; None: its parent's.
    counted: the name under which the report counts it; what is inside a counted drafter is not counted again.
    joint: stands between the part's name and a tensor's (official names are ``hc_attn_fn``, not ``hc_attn.fn``).
    """

    module: ClassVar[str]
    account: ClassVar[Account | None] = None
    counted: ClassVar[str | None] = None
    joint: ClassVar[str] = "."

    def tensors(self) -> tuple[Tensor, ...]:
        """The part's own tensors, without its children's."""
        return ()

    def children(self) -> tuple[tuple[str, ComponentSpec], ...]:
        """Named parts inside this one, in the order of computation; a name may be dotted."""
        return ()

    def cache(self, form: CacheFormat) -> tuple[CacheRows, ...]:
        """The part's own cache rows, without its children's."""
        del form
        return ()

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        """For each axis whose division leaves the part's output incomplete: how the ranks complete it together."""
        return ()

    def files_prefix(self, path: str) -> str | None:
        """What to take off a tensor's path to get its name in files of the part's own; None: its parent's files."""
        del path
        return None


@dataclass(frozen=True, slots=True)
class SharedSpec(ComponentSpec):
    """The very part that stands at ``path`` of the stage, under a second name: no tensors of its own."""

    module: ClassVar[str] = ""

    path: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor in its place: ``path`` in the stage, ``name`` in the checkpoint (``own_files``: not the target's)."""

    path: str
    name: str
    tensor: Tensor
    account: Account
    own_files: bool

    def official_names(self) -> Iterator[str]:
        """The tensors of the official layout that this one holds."""
        if not self.tensor.stacked:
            yield self.name
            return
        head, matrix, kind = self.name.rsplit(".", 2)
        for index in range(self.tensor.stacked):
            yield f"{head}.{index}.{matrix}.{kind}"


def walk(spec: ComponentSpec, path: str = "", account: Account = Account.WEIGHTS) -> Iterator[Declared]:
    """Every tensor of a part and of what is in it, each once, in the order of construction."""
    yield from _walk(spec, path, account, prefix=None)


def _walk(spec: ComponentSpec, path: str, account: Account, prefix: str | None) -> Iterator[Declared]:
    account = spec.account or account
    own = spec.files_prefix(path)
    prefix = prefix if own is None else own
    for tensor in spec.tensors():
        full = join(path, tensor.name, spec.joint)
        booked = Account.BUFFERS if tensor.origin is Origin.DERIVED else account
        if tensor.source is not None or prefix is None:
            yield Declared(full, tensor.source or full, tensor, booked, own_files=False)
        else:
            yield Declared(full, full.removeprefix(prefix), tensor, booked, own_files=True)
    for name, child in spec.children():
        yield from _walk(child, join(path, name), account, prefix)


def join(path: str, name: str, joint: str = ".") -> str:
    """``path`` and ``name`` as one dotted name; an empty path is the root."""
    return f"{path}{joint}{name}" if path else name


def parts(spec: ComponentSpec, path: str = "") -> Iterator[tuple[str, ComponentSpec]]:
    """A part and every part inside it, with paths, parents first."""
    yield path, spec
    for name, child in spec.children():
        yield from parts(child, join(path, name))
