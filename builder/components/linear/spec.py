"""Matrices as they are stored: plain, FP8 in blocks of 128 x 128, or packed FP4 in rows of 32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Axis, ComponentSpec, Join, Split, Tensor
from builder.schema.model import FP4_BLOCK, FP8_BLOCK, ModelConfig

_DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "e8m0": "F8_E8M0"}


def dtype_name(word: str) -> str:
    """A configuration's dtype word as safetensors spells it: bfloat16 -> BF16."""
    return _DTYPE_NAMES[word]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How one kind of matrix is stored. kind: plain, fp8 or fp4; dtype: of the elements; scale: of the scales."""

    kind: str
    dtype: str
    scale: str = ""


@dataclass(frozen=True, slots=True)
class Formats:
    """The storage of every kind of weight. ``kept`` parameters stay in float32 whatever the rest is."""

    linear: WeightFormat
    expert: WeightFormat
    plain: str
    kept: str = "F32"

    @classmethod
    def of(cls, model: ModelConfig, weights: str = "native") -> Formats:
        """``native``: as the release stores them; ``bfloat16`` or ``float32``: dequantized once while loading."""
        quantization = model.quantization_config
        if weights != "native" or quantization is None:
            dtype = dtype_name(model.torch_dtype if weights == "native" else weights)
            plain = WeightFormat("plain", dtype)
            return cls(linear=plain, expert=plain, plain=dtype)
        scale = dtype_name(quantization.scale_dtype)
        fp8 = WeightFormat("fp8", "F8_E4M3", scale)
        expert = WeightFormat("fp4", "I8", scale) if quantization.expert_dtype == "fp4" else fp8
        return cls(linear=fp8, expert=expert, plain=dtype_name(model.torch_dtype))


@dataclass(frozen=True, slots=True)
class Cut:
    """What one side of a matrix counts: see ``Split``."""

    axis: Axis
    count: int
    key: str


@dataclass(frozen=True, slots=True)
class LinearSpec(ComponentSpec):
    """y = x W^T, W [out_features, in_features]; ``rows`` and ``columns`` say what tp may divide them by."""

    module: ClassVar[str] = "builder.components.linear.module:Linear"

    out_features: int
    in_features: int
    form: WeightFormat
    rows: Cut | None = None
    columns: Cut | None = None

    def tensors(self) -> tuple[Tensor, ...]:
        out, into = self.out_features, self.in_features
        match self.form.kind:
            case "fp8":
                weight = Tensor("weight", (out, into), self.form.dtype, self._splits(FP8_BLOCK, FP8_BLOCK))
                blocks = (-(-out // FP8_BLOCK), -(-into // FP8_BLOCK))
                return weight, Tensor("scale", blocks, self.form.scale, self._splits(), values=0)
            case "fp4":
                packed = self._splits(FP4_BLOCK, FP4_BLOCK // 2)
                weight = Tensor("weight", (out, into // 2), self.form.dtype, packed, values=2)
                rows = (out, into // FP4_BLOCK)
                return weight, Tensor("scale", rows, self.form.scale, self._splits(), values=0)
            case _:
                return (Tensor("weight", (out, into), self.form.dtype, self._splits()),)

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ((self.columns.axis, Join.SUM),) if self.columns else ()

    def _splits(self, row_block: int = 1, column_block: int = 1) -> tuple[Split, ...]:
        sides = ((0, self.rows, row_block), (1, self.columns, column_block))
        return tuple(Split(dim, cut.axis, cut.count, cut.key, block) for dim, cut, block in sides if cut)


@dataclass(frozen=True, slots=True)
class StackedLinearSpec(LinearSpec):
    """The same matrix of every expert in one tensor, [experts, …]."""

    module: ClassVar[str] = "builder.components.linear.module:StackedLinear"

    experts: int = 0

    def tensors(self) -> tuple[Tensor, ...]:
        split = Split(0, Axis.EXPERTS, self.experts, "n_routed_experts")
        single = LinearSpec(self.out_features, self.in_features, self.form, self.rows, self.columns)
        return tuple(tensor.stack(self.experts, split) for tensor in single.tensors())

    def joins(self) -> tuple[tuple[Axis, Join], ...]:
        return ()
