"""Sweeps: every combination is a row, whatever becomes of it; finished rows are not planned again."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from builder.planning import sweep, tasks


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that were really planned."""
    seen: list[Any] = []
    original = tasks.run_plan

    def counting(config: Any) -> tasks.Outcome:
        seen.append(config)
        return original(config)

    monkeypatch.setattr(tasks, "run_plan", counting)
    return seen


def test_every_combination_is_a_row(run: Run, tmp_path: Path) -> None:
    result = run("-m", "task=plan", "hardware=amd,nvidia,xpu", "spec=none,mtp,ngram", "pp=1,2,4,8", "output=json")
    assert result.code == 0
    rows = result.document
    assert len(rows) == 36
    assert {row["status"] for row in rows} == {"fits", "too large"}
    assert len({row["key"] for row in rows}) == 36
    assert rows[0]["overrides"] == {"task": "plan", "hardware": "amd", "spec": "none", "pp": 1}
    assert rows[0]["reason"].startswith("rank 0 lacks ")
    assert rows[2]["partition"] == [15, 16, 15, 15]
    assert not list(tmp_path.iterdir())


def test_a_row_has_the_figures_of_its_plan(run: Run) -> None:
    plan = run("task=plan", "hardware=amd", "pp=4", "output=json").document
    (row,) = run("-m", "task=plan", "hardware=amd", "pp=4", "output=json").document
    limiting = plan["ranks"][plan["limiting_rank"]]
    assert (row["fits"], row["limiting_rank"], row["free_bytes"]) == (True, limiting["rank"], limiting["free_bytes"])
    assert row["bytes"] == max(sum(rank["bytes"].values()) for rank in plan["ranks"])
    for name in ("longest_request", "tokens", "requests"):
        assert row[name] == min(rank["capacity"][name] for rank in plan["ranks"])


def test_refused_rows_are_rows(run: Run) -> None:
    rows = run("-m", "task=plan", "spec=none,mtp", "spec.num_speculative_tokens=2", "pp=4,62", "output=json").document
    assert [row["status"] for row in rows] == ["refused", "refused", "fits", "refused"]
    assert rows[0]["reason"].startswith("spec.num_speculative_tokens=2: spec=none has no such key")
    assert " | pp=62: v4_pro has 61 layers" in rows[1]["reason"]
    assert rows[3]["reason"].startswith("pp=62: v4_pro has 61 layers")
    for line in ("hardware=amd,amdd", "zzz=1,2", "task=plan,generate"):
        result = run("-m", "task=plan", "pp=4", line, "output=json")
        assert result.code == 0
        assert result.document[-1]["status"] == "refused"


def test_hydras_sweep_grammar(run: Run) -> None:
    def values(key: str, text: str) -> list[Any]:
        rows = run("-m", "task=plan", "hardware=cpu", "model=tiny", text, "output=json").document
        return [row["overrides"][key] for row in rows]

    assert values("pp", "pp=range(1,4)") == [1, 2, 3]
    assert values("seed", "seed=choice(3,5)") == [3, 5]
    assert values("cache", "cache=glob(*)") == ["fp8", "fp8_fp4", "plain"]
    assert values("cache", "cache=glob(*,exclude=fp8*)") == ["plain"]
    assert values("parallel.partition", "parallel.partition=[6],auto") == [[6], "auto"]


def test_free_text_is_never_swept(run: Run) -> None:
    rows = run("-m", "task=plan", "prompt=a,b ${x}", "hardware=cpu", "model=tiny", "output=json").document
    assert [row["overrides"]["prompt"] for row in rows] == ["a,b ${x}"]


def test_rows_on_cpu_are_not_judged(run: Run) -> None:
    (row,) = run("-m", "task=plan", "hardware=cpu", "model=tiny", "output=json").document
    assert (row["status"], row["fits"], row["free_bytes"]) == ("not judged", None, None)


def test_rows_are_assembled_with_task_build(run: Run) -> None:
    rows = run("-m", "hardware=cpu", "model=tiny", "spec=none,mtp", "output=json").document
    assert [row["status"] for row in rows] == ["not judged", "not judged"]


def test_the_table_on_screen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("-m", "task=plan", "hardware=amd", "spec=none,dspark", "pp=2,4")
    assert (result.code, result.err) == (0, "")
    assert "4 rows: 1 too large, 1 fits, 2 refused" in result.out
    assert "2 refused: spec=dspark: v4_pro holds no DSpark stages" in result.out
    monkeypatch.setenv("COLUMNS", "200")
    wide = run("-m", "task=plan", "hardware=amd", "spec=none,dspark", "pp=2,4").out
    assert "longest" in wide
    assert "reason" in wide


def test_files_and_resuming(run: Run, planned: list[Any]) -> None:
    line = ("-m", "task=plan", "spec=none,mtp,dspark", "pp=2,4", "out=o")
    assert run(*line).code == 0
    assert len(planned) == 4
    rows = json.loads(Path("o/sweep.json").read_text())
    assert len(rows) == 6
    with Path("o/sweep.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["status"] for row in table] == [row["status"] for row in rows]
    assert (table[1]["spec"], table[1]["pp"], table[1]["partition"]) == ("none", "4", "15 16 15 15")
    again = run(*line, "output=json")
    assert len(planned) == 4, "finished rows are not planned again"
    assert again.document == rows
    run("-m", "task=plan", "spec=none", "parallel.pp=2,8", "out=o")
    assert len(planned) == 5, "a row is known by its resolved configuration, not by how it was typed"
    assert sorted(path.name for path in Path("o").iterdir()) == ["sweep.csv", "sweep.json"]


def test_an_interrupted_sweep_goes_on(run: Run, planned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("-m", "task=plan", "pp=1,2,4,8", "out=o", "output=json")
    counting = tasks.run_plan

    def interrupted(config: Any) -> tasks.Outcome:
        if config.parallel.pp == 4:
            raise KeyboardInterrupt
        return counting(config)

    monkeypatch.setattr(tasks, "run_plan", interrupted)
    assert run(*line).code == 130
    assert len(json.loads(Path("o/sweep.json").read_text())) == 2
    monkeypatch.setattr(tasks, "run_plan", counting)
    assert len(run(*line).document) == 4
    assert [config.parallel.pp for config in planned] == [1, 2, 4, 8]


@pytest.mark.parametrize("text", ["{bad", "[1]", '{"a": 1}', '[{"key": 1}]', ""])
def test_a_broken_file_is_moved_aside(run: Run, text: str) -> None:
    Path("o").mkdir()
    Path("o/sweep.json").write_text(text)
    result = run("-m", "task=plan", "pp=4", "out=o", "output=json")
    assert result.code == 0
    assert result.err.startswith("builder: warning: o/sweep.json cannot be read (")
    assert len(json.loads(Path("o/sweep.json").read_text())) == 1
    (aside,) = Path("o").glob("sweep.json.unreadable-*")
    assert aside.read_text() == text


def test_a_bug_in_one_row_is_that_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tasks.run_plan

    def broken(config: Any) -> tasks.Outcome:
        if config.parallel.pp == 2:
            raise RuntimeError("ours")
        return original(config)

    monkeypatch.setattr(tasks, "run_plan", broken)
    result = run("-m", "task=plan", "pp=1,2,4", "out=o", "output=json")
    assert result.code == 1
    assert [row["status"] for row in result.document] == ["too large", "failed", "fits"]
    assert "RuntimeError: ours" in result.document[1]["reason"]
    monkeypatch.setattr(tasks, "run_plan", original)
    assert run("-m", "task=plan", "pp=1,2,4", "out=o", "output=json").code == 0, "a failed row is planned again"


def test_a_sweep_whose_rows_are_all_refused_is_done(run: Run) -> None:
    result = run("-m", "hardwre=amd,nvidia", "output=json")
    assert (result.code, [row["status"] for row in result.document]) == (0, ["refused", "refused"])


def test_another_launcher_runs_the_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder import cli_sweep
    from builder.composition.launch import launch

    def through_basic(composer: Any, line: Any) -> Any:
        return lambda configs: launch(composer.groups, line.hydra, sweep.plan_row, configs)

    monkeypatch.setattr(cli_sweep, "_launch", through_basic)
    line = ("-m", "task=plan", "spec=none,dspark", "pp=2,4", "output=json")
    launched = run(*line)
    monkeypatch.undo()
    assert launched.code == 0
    assert launched.document == run(*line).document


@pytest.mark.parametrize(
    ("launcher", "module"),
    [("joblib", "hydra_plugins.hydra_joblib_launcher"), ("submitit_local", "hydra_plugins.hydra_submitit_launcher")],
)
def test_the_same_table_under_every_launcher(tmp_path: Path, launcher: str, module: str) -> None:
    pytest.importorskip(module)
    line = [sys.executable, "-m", "builder", "-m", "task=plan", "model=v4_flash", "spec=none,dspark", "pp=1,2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}

    def table(*more: str) -> list[Any]:
        words = [*line, "output=json", *more]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    rows = table()
    assert [row["status"] for row in rows] == ["fits", "fits", "refused", "refused"]
    assert table(f"hydra/launcher={launcher}") == rows
    assert not list(tmp_path.iterdir())


FLASH = Path(__file__).parent / "data" / "checkpoints" / "tiny-flash"
RUNS = ("-m", "task=generate", f"checkpoint={FLASH}", "hardware=cpu", "prompt_ids=[1,2,3]", "output=json")


def test_tasks_that_compute_are_rows_too(run: Run) -> None:
    rows = run(*RUNS, "generate.max_new_tokens=6", "spec=ngram", "spec.num_speculative_tokens=1,3,0").document
    assert [row["status"] for row in rows] == ["done", "done", "refused"]
    assert all(row["tokens_per_second"] > 0 and 1 <= row["steps"] <= 6 for row in rows[:2])
    (row,) = run("-m", "task=verify", f"checkpoint={FLASH}", "verify.tolerance=1e-12", "output=json").document
    assert (row["status"], row["reason"]) == ("no", None)
    assert 1e-12 < row["largest_difference"] < 1e-4
    (row,) = run("-m", "task=bench", "bench.what=stash", "output=json").document
    assert row["reason"] == "bench.what=stash: makes no row of a sweep; use bench.what=forward"


def test_a_row_whose_ranks_end_early_is_not_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.errors import RankError
    from builder.runtime import tasks as computing

    original = computing.compute

    def dying(config: Any) -> Any:
        if config.parallel.pp == 2:
            raise RankError("rank 1 was killed by signal 9 (SIGKILL); the others were stopped")
        return original(config)

    monkeypatch.setattr(computing, "compute", dying)
    result = run(*RUNS, "generate.max_new_tokens=2", "pp=2,1")
    assert result.code == 1
    assert [(row["status"], row["reason"]) for row in result.document] == [
        ("failed", "rank 1 was killed by signal 9 (SIGKILL); the others were stopped"),
        ("done", None),
    ]


def test_the_table_says_what_its_numbers_leave_out(run: Run) -> None:
    shown = run("-m", "task=plan", "hardware=amd", "pp=2,4", "dp=2").out
    assert "tokens and requests are those of one replica; a deployment holds dp times as many" in shown
    assert "what the others lack: output=json, or a terminal of 150 columns" in shown
    shown = run("-m", "task=plan", "hardware=amd", "pp=4,8").out
    assert "one replica" not in shown
    assert "what the others lack" not in shown
