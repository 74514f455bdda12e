"""The grouped output projection."""

from __future__ import annotations

from torch import Tensor

from builder.components.base.module import Component
from builder.components.grouped_output.spec import GroupedLinearSpec
from builder.components.linear.module import scale_of


class GroupedLinear(Component[GroupedLinearSpec]):
    """Each group of heads has its own rows of the weight."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, groups, in_features] -> [tokens, groups * rank]."""
        return self.ops.linear.grouped(x, self.weight, scale_of(self))
