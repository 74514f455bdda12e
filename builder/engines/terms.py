"""One line of a comparison of a log with a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Term:
    """plan: None where it has no such figure; agrees: None where the two need not be equal; stage: of a pipeline."""

    term: str
    unit: str
    plan: float | None
    log: float
    explanation: str
    agrees: bool | None = None
    stage: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the document has it."""
        gap = None if self.plan is None else self.log - self.plan
        return {
            "term": self.term,
            "stage": self.stage,
            "unit": self.unit,
            "plan": self.plan,
            "log": self.log,
            "difference": None if gap is None else round(gap, 4),
            "percent": None if gap is None or not self.plan else round(100 * gap / self.plan, 2),
            "agrees": self.agrees,
            "explanation": self.explanation,
        }
