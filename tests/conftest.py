"""What several test files use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder import cli

# Test processes run side by side: torch's own threads would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Result:
    """One command line, run in this process."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run ``builder ARGUMENTS`` in an empty folder; nothing may be left behind there that was not asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Result:
        code = cli.main(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def flash_config() -> dict[str, Any]:
    """The official config.json of V4-Flash."""
    path = Path(__file__).parent / "data" / "configs" / "DeepSeek-V4-Flash.json"
    return json.loads(path.read_text(encoding="utf-8"))
