"""The grouped output projection (paper section 2.3.1): each group of heads has its own rows of ``wo_a``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.linear.spec import LinearSpec


@dataclass(frozen=True, slots=True)
class GroupedLinearSpec(LinearSpec):
    """[tokens, groups, in_features] -> [tokens, groups, out_features / groups], a matrix per group, stored in one."""

    module: ClassVar[str] = "builder.components.grouped_output.module:GroupedLinear"
