"""The input embedding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from builder.components.base.module import Component
from builder.components.embedding.spec import EmbeddingSpec


class Embedding(Component[EmbeddingSpec]):
    """Token ids to hidden states."""

    weight: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden], in the dtype of the weight."""
        return F.embedding(ids, self.weight)
