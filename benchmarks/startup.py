"""How long a command takes from nothing: whole processes, as ratios to ``python -c "import torch"`` in the same run.

The commands run one after the other, over and over, so that whatever else the machine does meets all of them.
Ratios of medians travel between machines; seconds do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "import torch"
ROWS = 200


@dataclass
class Command:
    """A process to measure. seconds, memory: at most so many times those of ``import torch``; rows: of a sweep."""

    name: str
    arguments: list[str]
    seconds: float | None = None
    memory: float | None = None
    rows: int = 0
    least_rows: float = 0.0
    walls: list[float] = field(default_factory=list[float])
    peaks: list[int] = field(default_factory=list[int])

    def run(self, folder: str) -> None:
        """Start the process, wait for it, and note its wall time and its largest resident size in bytes."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        said = Path(folder) / "standard-error"
        before = time.perf_counter()
        with said.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *self.arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=file
            )
        _, status, usage = os.wait4(process.pid, 0)
        self.walls.append(time.perf_counter() - before)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{self.name}: exit code {process.returncode}\n{said.read_text()}")
        self.peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))

    @property
    def wall(self) -> float:
        """Median seconds."""
        return statistics.median(self.walls)

    @property
    def peak(self) -> float:
        """Median bytes."""
        return statistics.median(self.peaks)


def commands() -> list[Command]:
    """What is measured; the first is what the others are compared with."""
    run = ["-m", "builder"]
    # 10 x 5 x 4 rows that all differ, over groups and over a value
    stages = f"pp=range(1,{ROWS // 20 + 1})"
    methods = "spec=none,ngram,mtp,eagle,draft_model"
    tokens = "runtime.max_num_batched_tokens=2048,4096,8192,16384"
    sweep = ["-m", "task=plan", "hardware=amd", stages, methods, tokens]
    return [
        Command(BASE, ["-c", BASE]),
        Command("task=plan", [*run, "task=plan", "hardware=amd", "spec=none", "pp=4"], seconds=0.45),
        Command("default", [*run, "hardware=amd", "spec=none", "pp=4"], seconds=1.8, memory=1.5),
        Command(f"sweep of {ROWS} plans", [*run, *sweep], rows=ROWS, least_rows=20),
    ]


def measure(times: int) -> list[Command]:
    """Run every command ``times`` times, in turn, after one turn that only warms the file cache."""
    found = commands()
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(times + 1):
            for command in found:
                command.run(folder)
                if turn == 0:
                    command.walls.clear()
                    command.peaks.clear()
    return found


def rows(found: list[Command]) -> list[dict[str, object]]:
    """One line per command, with its targets and whether it meets them."""
    base, *_ = found
    lines: list[dict[str, object]] = []
    for command in found:
        time_ratio, memory_ratio = command.wall / base.wall, command.peak / base.peak
        rate = command.rows / command.wall if command.rows else None
        meets = (
            (command.seconds is None or time_ratio <= command.seconds)
            and (command.memory is None or memory_ratio <= command.memory)
            and (rate is None or rate >= command.least_rows)
        )
        lines.append(
            {
                "command": command.name,
                "seconds": round(command.wall, 3),
                "time_ratio": round(time_ratio, 3),
                "time_target": command.seconds,
                "peak_mib": round(command.peak / 2**20, 1),
                "memory_ratio": round(memory_ratio, 3),
                "memory_target": command.memory,
                "rows_per_second": None if rate is None else round(rate, 1),
                "rows_target": command.least_rows or None,
                "meets": meets,
            }
        )
    return lines


def table(lines: list[dict[str, object]]) -> str:
    """A Markdown table: measured, and the target in brackets."""

    def cell(value: object, target: object, bound: str) -> str:
        text = "-" if value is None else str(value)
        return text if target is None else f"{text} ({bound} {target})"

    head = "| command | seconds | time / import torch | peak MiB | memory / import torch | rows a second |"
    out = [head, "|---|---|---|---|---|---|"]
    for line in lines:
        cells = [
            f"`{line['command']}`",
            str(line["seconds"]),
            cell(line["time_ratio"], line["time_target"], "≤"),
            str(line["peak_mib"]),
            cell(line["memory_ratio"], line["memory_target"], "≤"),
            cell(line["rows_per_second"], line["rows_target"], "≥"),
        ]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> int:
    """0 if every target is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5, help="how often each command runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    lines = rows(measure(options.n))
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    return 0 if all(line["meets"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
