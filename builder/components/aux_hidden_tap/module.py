"""The tap of averaged hidden states."""

from __future__ import annotations

from torch import Tensor

from builder.components.aux_hidden_tap.spec import AuxHiddenTapSpec
from builder.components.base.module import Component


class AuxHiddenTap(Component[AuxHiddenTapSpec]):
    """Keeps the named layers' averages over the streams, side by side."""

    rows: Tensor
