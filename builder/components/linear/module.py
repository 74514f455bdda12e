"""Matrix products with weights as they are stored."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from builder.components.base.module import Component
from builder.components.linear.spec import LinearSpec, StackedLinearSpec


def scale_of(part: Component[Any]) -> Tensor | None:
    """The scale beside a quantized weight; a plain weight has none."""
    return cast("Tensor", part.scale) if part.spec.form.kind != "plain" else None


class Linear(Component[LinearSpec]):
    """y = x W^T. A quantized weight has its ``scale`` beside it; a plain one has none."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of x."""
        return self.ops.linear.linear(x, self.weight, scale_of(self))

    def exact(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], computed and returned in float32 (or float64)."""
        return self.ops.linear.exact_linear(x, self.weight)


class StackedLinear(Component[StackedLinearSpec]):
    """The matrices of all experts of the rank in one tensor, [experts, out, in]."""

    weight: Tensor

    @property
    def matrix(self) -> tuple[Tensor, Tensor | None]:
        """The weight and its scale."""
        return self.weight, scale_of(self)
