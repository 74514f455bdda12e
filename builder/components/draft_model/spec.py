"""A second DeepSeek-V4 as the drafter: independent of the target, whole on the last stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from builder.components.base.spec import Account
from builder.components.stage.spec import StageSpec


@dataclass(frozen=True, slots=True)
class DraftModelSpec(StageSpec):
    """Stands at ``draft``; the official names of its own files start below that."""

    module: ClassVar[str] = "builder.components.draft_model.module:DraftModel"
    account: ClassVar[Account | None] = Account.DRAFTER
    counted: ClassVar[str | None] = "draft_model"

    def files_prefix(self, path: str) -> str | None:
        return f"{path}."
