"""How a declaration becomes a module: parameters and children come from the spec, a class adds only its computation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import nn

from builder.components.base.spec import ComponentSpec, Origin, SharedSpec, Tensor
from builder.kernels.operations import Operations

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""What the dtype names of a declaration mean in memory."""

_TRAINABLE = {"F64", "F32", "BF16", "F16"}

Share = tuple[tuple[int, int], ...]
"""A part of a tensor: for every dimension, the first element and the one after the last."""

SpecT = TypeVar("SpecT", bound=ComponentSpec)


@dataclass
class Construction:
    """What the assembly tells every part while it is built.

    share_of: the rank's share of a declared tensor; shared: (parent, name, path) of parts that stand elsewhere too.
    """

    device: torch.device
    share_of: Callable[[Tensor], Share]
    ops: Operations
    trainable: bool = False
    shared: list[tuple[nn.Module, str, str]] = field(default_factory=list[tuple[nn.Module, str, str]])

    def empty(self, tensor: Tensor) -> torch.Tensor:
        """Memory for the rank's share, not filled."""
        shape = [stop - start for start, stop in self.share_of(tensor)]
        return torch.empty(shape, dtype=TORCH_DTYPES[tensor.dtype], device=self.device)


class Component(nn.Module, Generic[SpecT]):
    """A part of the model. Its tensors and children are those of ``spec``, under the same names."""

    def __init__(self, spec: SpecT, construction: Construction) -> None:
        super().__init__()
        self.spec = spec
        self.ops = construction.ops
        if spec.joint == ".":
            for tensor in spec.tensors():
                hold(self, tensor.name, tensor, construction)
        for name, child in spec.children():
            _attach(self, name, child, construction)

    def fill(self) -> None:
        """Compute the derived tensors of this part; called once, when the memory is real."""


def held_rows(rows: torch.Tensor, first: int, count: int, what: str) -> torch.Tensor:
    """``count`` rows of a runtime tensor from ``first`` on, a view. More than it holds: ValueError, never a cut."""
    held = rows.shape[0]
    if first < 0 or first + count > held:
        raise ValueError(
            f"rows {first} to {first + count - 1} of {what}: it holds {held}; "
            f"raise runtime.max_num_batched_tokens to {first + count} or send fewer tokens a step"
        )
    return rows[first : first + count]


def make(spec: ComponentSpec, construction: Construction) -> nn.Module:
    """The module of a declaration."""
    return _class_of(spec.module)(spec, construction)


def hold(module: nn.Module, name: str, tensor: Tensor, construction: Construction) -> None:
    """Register a declared tensor: weights as parameters; tables, derived and runtime tensors as buffers."""
    memory = construction.empty(tensor)
    if tensor.origin is not Origin.CHECKPOINT:
        module.register_buffer(name, memory, persistent=False)
    elif tensor.dtype in ("I32", "I64"):
        module.register_buffer(name, memory)
    else:
        trainable = construction.trainable and tensor.dtype in _TRAINABLE
        module.register_parameter(name, nn.Parameter(memory, requires_grad=trainable))


def _attach(parent: nn.Module, name: str, spec: ComponentSpec, construction: Construction) -> None:
    holder, _, last = name.rpartition(".")
    owner = _container(parent, holder)
    if isinstance(spec, SharedSpec):
        construction.shared.append((owner, last, spec.path))
        return
    if spec.joint != ".":
        for tensor in spec.tensors():
            hold(owner, f"{last}{spec.joint}{tensor.name}", tensor, construction)
    owner.add_module(last, make(spec, construction))


def _container(parent: nn.Module, path: str) -> nn.Module:
    # layers.3 stands in a plain module named "layers", made for the first of them.
    for name in path.split(".") if path else ():
        if name not in dict(parent.named_children()):
            parent.add_module(name, nn.ModuleDict())
        parent = parent.get_submodule(name)
    return parent


@cache
def _class_of(name: str) -> Callable[[ComponentSpec, Construction], nn.Module]:
    module, _, class_name = name.partition(":")
    return getattr(importlib.import_module(module), class_name)
