"""The command line: exit codes, what goes to which stream, what is written, and running again from what was written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Run

import builder
from builder.paths import conf_dir
from builder.planning import tasks
from builder.schema.config import TASKS

ROOT = Path(builder.__file__).parents[1]


def test_a_plan_that_fits(run: Run, tmp_path: Path) -> None:
    result = run("task=plan", "hardware=amd", "spec=none", "pp=4", "output=json")
    assert (result.code, result.err) == (0, "")
    assert result.document["parallel"]["pp"] == 4
    assert result.document["fits"] is True
    assert not list(tmp_path.iterdir()), "nothing is written without out="


def test_a_plan_that_does_not_fit_exits_1(run: Run) -> None:
    result = run("task=plan", "pp=1", "output=json")
    assert (result.code, result.document["fits"]) == (1, False)


def test_a_plan_that_is_not_judged_exits_0(run: Run) -> None:
    result = run("task=plan", "hardware=cpu", "model=tiny", "output=json")
    assert (result.code, result.document["fits"]) == (0, None)


def test_the_table_is_for_people(run: Run) -> None:
    result = run("task=plan", "hardware=amd", "pp=4")
    assert (result.code, result.err) == (0, "")
    assert "MTP stash" in result.out


def test_warnings_go_to_standard_error(run: Run) -> None:
    result = run("task=plan", "model=v4_pro_0813", "spec=dspark", "spec.num_speculative_tokens=9", "output=json")
    assert result.err.startswith("builder: warning: spec.num_speculative_tokens=9 is more than")
    assert result.document["spec"]["num_speculative_tokens"] == 9


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_group_option_and_key(run: Run, flag: str) -> None:
    result = run(flag)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    for path in conf_dir().rglob("*.yaml"):
        if path.parent != conf_dir():
            assert f"  {path.parent.name}=" in lines
            assert any(line.startswith(f"    {path.stem} ") for line in lines), path
    root = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    for key in root.keys() - {"defaults", "hydra"}:
        assert any(line.startswith(f"    {key}=") for line in lines), key
    for key in (
        "generate.max_new_tokens=128",
        "verify.tolerance=",
        "search.gpus=null",
        "bench.what=",
        "export.engine=",
    ):
        assert any(line.startswith(f"    {key}") for line in lines), key


def test_version(run: Run) -> None:
    assert run("--version").out == f"builder {builder.__version__}\n"


def test_cfg_job_prints_what_was_composed(run: Run) -> None:
    text = '"quoted", ${x} '
    document = yaml.safe_load(run("--cfg", "job", "pp=3", f"prompt={text}").out)
    assert (document["pp"], document["prompt"], document["runtime"]["dtype"]) == (3, text, "auto")
    assert "hydra" not in document
    assert run("-c", "job", "-p", "cache", "cache=plain").out == "# @package cache\nlayout: plain\n"
    assert "pp: ${pp}" in run("--cfg=job", "--package", "parallel").out
    assert "pp: 3" in run("pp=3", "--cfg", "job", "--resolve", "-p", "parallel").out


def test_flags_may_stand_anywhere(run: Run) -> None:
    assert yaml.safe_load(run("pp=3", "-c", "job", "tp=2").out)["tp"] == 2
    assert run("hardware=amd", "-m", "task=plan", "output=json", "pp=2,4").code == 0


def test_hydra_answers_questions_about_itself(run: Run) -> None:
    assert (
        run("--info", "config", "hardwre=amd").err
        == "builder: hardwre=amd: there is no such key; did you mean hardware?\n"
    )
    for line in ("--cfg hydra", "--cfg all", "--info searchpath", "--hydra-help", "-sc install=bash"):
        result = run(*line.split())
        assert (result.code, bool(result.out)) == (0, True), (line, result.err)
    assert run("--cfg", "hydra", "+hydra.zzz=1").code == 2


def test_files_of_a_run(run: Run, tmp_path: Path) -> None:
    first = run("task=plan", "hardware=amd", "pp=4", "out=a/b", "output=json")
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == ["config.yaml", "plan.json"]
    assert json.loads((tmp_path / "a/b/plan.json").read_text()) == first.document


@pytest.mark.parametrize(
    "line",
    [
        "model=v4_flash spec=mtp pp=2 tp=2 hardware=amd",
        "hardware=cpu model=tiny cache=fp8 runtime.max_num_seqs=3 parallel.pp=2",
        "model=v4_pro_0813 spec=dspark pp=4",
        "spec=draft_model model@draft=v4_flash_base kernels=reference seed=3",
        "hardware.device=custom hardware.memory_bytes=123456789 parallel.shared_expert=replicated tp=16",
    ],
)
def test_running_again_gives_the_same_plan(run: Run, line: str) -> None:
    first = run("task=plan", "output=json", "out=first", *line.split())
    for number, flags in enumerate(("-cp first", "-cd first -cn config", "-cn first/config.yaml")):
        again = run("output=json", f"out=again{number}", *flags.split())
        assert (again.err, again.document) == ("", first.document)
        assert Path(f"again{number}/config.yaml").read_text() == Path("first/config.yaml").read_text()


def test_a_custom_model_runs_again_without_its_file(run: Run, tmp_path: Path, flash_config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(flash_config | {"index_topk": 64}))
    first = run("task=plan", "model=custom", "model.config=config.json", "pp=2", "out=o", "output=json")
    (tmp_path / "config.json").unlink()
    assert run("-cp", "o", "output=json").document == first.document


def test_free_text_survives_being_saved(run: Run) -> None:
    text = 'a: "${x" \\${y} {1,2}'
    run("task=plan", f"prompt={text}", "out=o")
    assert yaml.safe_load(run("-cp", "o", "--cfg", "job").out)["prompt"] == text


def test_overrides_on_top_of_a_saved_run(run: Run) -> None:
    base = (
        "task=plan",
        "model=v4_flash",
        "spec=ngram",
        "spec.num_speculative_tokens=7",
        "hardware=amd",
        "pp=2",
        "tp=2",
    )
    run(*base, "out=o")

    def again(line: str) -> dict[str, Any]:
        return run("-cp", "o", "output=json", *line.split()).document

    assert again("pp=3")["parallel"]["pp"] == 3
    assert again("parallel.tp=4")["parallel"]["tp"] == 4
    assert again("parallel=default")["parallel"] | {"partition": None} == {
        "pp": 1,
        "tp": 1,
        "ep": 1,
        "dp": 1,
        "partition": None,
        "shared_expert": "sharded",
    }
    assert again("")["spec"] == {"method": "ngram", "num_speculative_tokens": 7}
    assert again("spec=ngram")["spec"] == {"method": "ngram", "num_speculative_tokens": 4}
    assert again("spec=mtp")["spec"] == {"method": "mtp", "num_speculative_tokens": 1}
    assert again("hardware=cpu")["cache"] == {"layout": "plain"}
    assert again("model=v4_pro")["model"]["name"] == "v4_pro"
    assert run("-cp", "o", "hardwre=amd").err == "builder: hardwre=amd: there is no such key; did you mean hardware?\n"


def test_a_primary_file_written_by_hand(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults:\n  - hardware: amd\n  - override spec: mtp\n  - _self_\npp: 4\nspec:\n  num_speculative_tokens: 2\n"
    )
    result = run("--config-dir", ".", "--config-name", "mine", "task=plan", "output=json")
    assert result.document["hardware"]["vendor"] == "amd"
    assert result.document["spec"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert result.document["parallel"]["pp"] == 4
    (tmp_path / "typo.yaml").write_text("defaults:\n  - hardware: amd\npp: 4\nrntime:\n  max_num_seqs: 2\n")
    result = run("-cn", "typo.yaml")
    assert result.err == "builder: typo.yaml: rntime={'max_num_seqs': 2}: there is no such key; did you mean runtime?\n"
    (tmp_path / "odd.yaml").write_text("defaults:\n  - hardware: [amd, nvidia]\n")
    assert "is not understood; write - group: option" in run("-cn", "odd.yaml").err


def test_every_registered_task_is_known_and_importable() -> None:
    for task in (name for name, function in TASKS.items() if function):
        assert callable(tasks.runner(task))


def test_a_bug_of_ours_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(tasks, "run_plan", broken)
    with pytest.raises(RuntimeError, match="ours"):
        run("task=plan")


def test_interrupted_in_silence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "run_plan", interrupted)
    assert run("task=plan").code == 130


def test_as_a_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_LINE": "builder hardware=", "HYDRA_FULL_ERROR": "1"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-X", "importtime", "-m", "builder", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
        assert "torch" not in imported
        return done

    assert call("task=plan", "pp=1", "output=json").returncode == 1
    assert call("--help").returncode == 0
    assert call("--cfg", "job").returncode == 0
    assert call("-sc", "query=bash").stdout.split() == [f"hardware={name}" for name in ("amd", "cpu", "nvidia", "xpu")]
    refused = call("pp=0")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_closed_pipe_is_no_error() -> None:
    command = f"({sys.executable} -m builder --help; echo $? >&2) | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


# A shell gives what it starts in the background a SIGINT that is ignored: listen to it again.
LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from builder.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_control_c_as_a_process() -> None:
    command = [sys.executable, "-c", LISTENING, "-m", "task=plan", "seed=range(5000)"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # The first line of progress: from here on rows are planned one after another.
        assert "rows" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_devices_and_options_of_a_users_own_folder(run: Run, tmp_path: Path) -> None:
    device = "{memory_bytes: 500000000000, arch: x, fp8: e4m3fn, native_fp4: true, source: me}"
    (tmp_path / "d/hardware").mkdir(parents=True)
    (tmp_path / "d/hardware/mine.yaml").write_text(f"# Mine\nvendor: amd\ndevice: big\ndevices:\n  big: {device}\n")
    (tmp_path / "d/primary.yaml").write_text(f"hardware:\n  device: big\n  devices:\n    big: {device}\n")
    line = ("task=plan", "pp=4", "output=json")
    for flags in ("-cd d hardware=mine", "hydra.searchpath=[file://d] hardware=mine", "-cd d -cn primary"):
        result = run(*line, *flags.split())
        assert result.err == ""
        assert result.document["hardware"]["memory_bytes"] == 500_000_000_000
    assert "    mine                   Mine" in run("--help", "-cd", "d").out.splitlines()
    run(*line, "-cd", "d", "hardware=mine", "out=o")
    assert run("-cp", "o", "-cd", "d", "output=json").document["hardware"]["device"] == "big"
    assert "Could not find 'hardware/mine'" in run("-cp", "o").err
    assert run("hydra.searchpath=[nope]").err.startswith("builder: hydra.searchpath=nope: there is no such folder")
