"""Planning, help and completion answer without torch: checked in a process of its own, by what was really loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "triton")

# Runs the line given as the first argument, then says on the last line of standard error what is loaded.
PROBE = f"""
import json, sys
exec(sys.argv[1])
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)
"""

IMPORT_ALL_OF_PLANNING = """
import importlib, pkgutil
import builder, builder.cli, builder.schema.config, builder.planning
for found in pkgutil.walk_packages(builder.planning.__path__, "builder.planning."):
    importlib.import_module(found.name)
"""

RUN = """
from builder.cli import main
code = main({argv!r})
assert code == 0, code
"""


def loaded_after(code: str, folder: Path, **environment: str) -> tuple[list[str], str]:
    """The heavy libraries that are loaded when the code is done, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


def test_the_probe_sees_torch(tmp_path: Path) -> None:
    assert loaded_after("import torch", tmp_path)[0] == ["torch"]


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    assert loaded_after(IMPORT_ALL_OF_PLANNING, tmp_path)[0] == []


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["task=plan", "output=json", "hardware=amd", "pp=4"], '"limiting_rank"'),
        (["task=plan", "model=v4_flash", "spec=mtp", "pp=2"], "mtp"),
        (["--help"], "hardware"),
        (["--cfg", "job"], "max_num_batched_tokens"),
        (["--cfg", "job", "--resolve"], "max_num_batched_tokens"),
        (["-m", "task=plan", "model=v4_flash", "pp=2,4"], "2 rows"),
    ],
    ids=lambda word: " ".join(word) if isinstance(word, list) else "",
)
def test_command_lines_load_nothing_heavy(tmp_path: Path, argv: list[str], shown: str) -> None:
    loaded, stdout = loaded_after(RUN.format(argv=argv), tmp_path)
    assert loaded == []
    assert shown in stdout
    assert list(tmp_path.iterdir()) == [], "a run without out= writes no file"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("builder hardware=", {"hardware=amd", "hardware=cpu", "hardware=nvidia", "hardware=xpu"}),
        ("builder spec=n", {"spec=none", "spec=ngram"}),
    ],
)
def test_completion_loads_nothing_heavy(tmp_path: Path, line: str, offered: set[str]) -> None:
    code = RUN.format(argv=["-sc", "query=bash"])
    loaded, stdout = loaded_after(code, tmp_path, COMP_LINE=line, COMP_POINT=str(len(line)))
    assert loaded == []
    assert set(stdout.split()) == offered
