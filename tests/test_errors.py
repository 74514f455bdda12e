"""The text of every refusal is part of the interface: one short message, exit 2, nothing on standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Run

DEVICES = (
    "use one of a100_40gb, a100_80gb, h100, h200, h20, b200, b300, gb200, gb300, gh200, l20, rtx_pro_6000, rtx_5090, "
    "dgx_spark, custom"
)
METHODS = "spec=ngram, spec=mtp, spec=eagle, spec=draft_model and spec=dspark have it"
SIZE = "use at least 1"
RANGE = "is out of range; use at least 1 and at most 65,536"

REFUSALS = [
    # misspelt: an option, a key, a key with +, a key of Hydra's, a flag
    ("hardware=amdd", "hardware=amdd: is not known; did you mean amd? use one of amd, cpu, nvidia, xpu"),
    ("spec=mtpp", "spec=mtpp: is not known; did you mean mtp? use one of draft_model, dspark, eagle, mtp, ngram, none"),
    ("hardwre=amd", "hardwre=amd: there is no such key; did you mean hardware?"),
    ("parallel.ppp=4", "parallel.ppp=4: parallel=default has no such key; did you mean parallel.pp?"),
    ("+parallel.ppp=4", "parallel.ppp=4: parallel=default has no such key; did you mean parallel.pp?"),
    ("++parallel.ppp=4", "parallel.ppp=4: parallel=default has no such key; did you mean parallel.pp?"),
    ("paralel.pp=4", "paralel.pp=4: there is no such key; did you mean parallel.pp?"),
    ("max_num_seqs=4", "max_num_seqs=4: there is no such key; did you mean runtime.max_num_seqs?"),
    ("zzz=4", "zzz=4: there is no such key; see --help for all keys"),
    (
        "hardware.devices.b301.memory_bytes=1",
        "hardware.devices.b301.memory_bytes=1: there is no such key; did you mean hardware.devices.b300.memory_bytes?",
    ),
    ("+hydra.zzz=1", "hydra.zzz=1: Hydra has no such key; did you mean hydra.run?"),
    ("hydra.ouput_subdir=x", "hydra.ouput_subdir=x: Hydra has no such key; did you mean hydra.output_subdir?"),
    ("+hydra.job.env_set.X=1", "hydra.job.env_set.X=1: Hydra has no such key; did you mean hydra.job.env_set?"),
    (
        "--nproc-per-node=8",
        "--nproc-per-node=8: there is no such flag; settings are written KEY=VALUE without dashes; see --help",
    ),
    ("--multirn", "--multirn: there is no such flag; did you mean --multirun?"),
    # numbers
    ("pp=0", f"pp=0: {RANGE}"),
    ("tp=-2", f"tp=-2: {RANGE}"),
    ("parallel.pp=0", f"parallel.pp=0: {RANGE}"),
    ("pp=62", "pp=62: v4_pro has 61 layers, and every stage needs at least one; use pp=1 to pp=61"),
    ("pp=four", "pp=four: is no integer; use at least 1 and at most 65,536"),
    ("pp=2.5", "pp=2.5: is no integer; use at least 1 and at most 65,536"),
    ("pp=null", "pp=null: must have a value; use at least 1 and at most 65,536"),
    ("pp=true", "pp=true: is no integer; use at least 1 and at most 65,536"),
    ("runtime.max_num_batched_tokens=0", f"runtime.max_num_batched_tokens=0: is out of range; {SIZE}"),
    ("runtime.max_num_seqs=-1", f"runtime.max_num_seqs=-1: is out of range; {SIZE}"),
    ("runtime.max_model_len=0", f"runtime.max_model_len=0: is out of range; {SIZE}"),
    ("runtime.max_model_len=long", "runtime.max_model_len=long: is no length; use auto, or 1 to 1048576"),
    ("runtime.memory_fraction=1.5", "runtime.memory_fraction=1.5: is out of range; use more than 0 and at most 1"),
    ("runtime.memory_fraction=much", "runtime.memory_fraction=much: is no number; use more than 0 and at most 1"),
    ("runtime.dtype=int8", "runtime.dtype=int8: is not known; use one of bfloat16, float32, float64"),
    ("model.hidden_size=0", "model.hidden_size=0: is out of range; use at least 1 and at most 16,777,216"),
    ("seed=-1", "seed=-1: is out of range; use at least 0"),
    ("output=xml", "output=xml: is not known; use table or json"),
    # two answers, or several where one is due
    ("pp=4 parallel.pp=8", "pp=4: parallel.pp=8 says otherwise, and both mean the same; give only one of them"),
    (
        "hardware=[amd,nvidia]",
        "hardware=[amd,nvidia]: a group takes one option; choose one, or sweep over them: -m hardware=amd,nvidia",
    ),
    (
        "pp=4,8",
        "pp=4,8: several values make a sweep, and this is a single run; add -m: -m pp=4,8; a list is written pp=[4,8]",
    ),
    ("pp=range(1,3)", "pp=range(1,3): several values make a sweep, and this is a single run; add -m: -m pp=range(1,3)"),
    ("~spec", "~spec: nothing can be taken away; use spec=none"),
    ("~pp", "~pp: nothing can be taken away; leave the key out, or choose another value"),
    ("hardware=null", "hardware=null: a group takes one option; name it, or leave the group out"),
    ("spec.method=mtp", "spec.method=mtp: comes with the option of the group, none here; use spec=mtp"),
    ("pp", "pp: is no KEY=VALUE; write pp=VALUE; see --help for the keys"),
    ("out=", "out=: is empty; give a value, or leave the key out"),
    # partitions
    (
        "pp=4 parallel.partition=[15,16,15,14]",
        "parallel.partition=[15, 16, 15, 14]: sums to 60, not to the model's 61 layers; "
        "use auto or even, or a list of 4 layer counts that sum to 61",
    ),
    (
        "pp=2 parallel.partition=[61]",
        "parallel.partition=[61]: has 1 stages, but pp=2; use auto or even, or a list of 2 layer counts that sum to 61",
    ),
    # devices
    (
        "hardware.device=h9000",
        f"hardware.device=h9000: hardware=nvidia has no such device; did you mean h200? {DEVICES}",
    ),
    (
        "hardware.device=custom",
        "hardware.device=custom: a custom device needs its memory in bytes; add hardware.memory_bytes=N",
    ),
    # sharding
    (
        "model=v4_flash tp=16",
        "tp=16: o_groups=8 does not divide by 16; use tp=8 (vLLM 0.33.0 and "
        "SGLang 0.5.23 take 8 // 16 = 0 groups unasked)",
    ),
    (
        "tp=16",
        "tp=16: the shared expert's moe_intermediate_size 3072 / 16 = 192 is no multiple of 128, one block of scales; "
        "use tp=8 or parallel.shared_expert=replicated (seen in vLLM #40955 and sglang #23602)",
    ),
    # speculative decoding
    ("spec=none spec.num_speculative_tokens=3", f"spec.num_speculative_tokens=3: spec=none has no such key; {METHODS}"),
    ("spec=mtp spec.max_ngram=3", "spec.max_ngram=3: spec=mtp has no such key; only spec=ngram has it"),
    ("spec=mtp model@draft=tiny", "model@draft=tiny: spec=mtp has no draft; add spec=draft_model, or leave it out"),
    ("draft.hidden_size=5", "draft.hidden_size=5: spec=none has no draft; only spec=draft_model has one"),
    (
        "model=v4_pro_0813 spec=mtp",
        "spec=mtp: v4_pro_0813 is a DSpark release: its mtp.* tensors are DSpark stages, although "
        "num_nextn_predict_layers=1; use spec=dspark",
    ),
    (
        "model=v4_flash_0731 spec=eagle",
        "spec=eagle: v4_flash_0731 is a DSpark release: its mtp.* tensors are DSpark stages, although "
        "num_nextn_predict_layers=1; use spec=dspark",
    ),
    (
        "spec=dspark",
        "spec=dspark: v4_pro holds no DSpark stages (its config has no dspark_block_size); "
        "use spec=mtp, or model=v4_pro_0813 or model=v4_flash_0731",
    ),
    # models and checkpoints
    ("model=custom", "model=custom: a custom model needs its config.json; give model.config=PATH of a config.json"),
    ("model.config=/x", "model.config=/x: model=v4_pro reads no config.json; add model=custom"),
    (
        "model=custom model.config=/nope",
        "model.config=/nope: there is no such file or folder; give a config.json or the folder that holds it",
    ),
    ("checkpoint=/nope", "checkpoint=/nope: there is no such folder; give the folder that holds config.json"),
    # tasks
    (
        "generate.max_new_tokens=5",
        "generate.max_new_tokens=5: task=build has no such key; only task=generate has it",
    ),
    (
        "task=verify plan.engine=vllm",
        "plan.engine=vllm: task=verify has no such key; task=build, task=plan, task=reconcile and task=search have it",
    ),
    ("pp=${nope}", "pp=${nope}: cannot be resolved (Interpolation key 'nope' not found)"),
]


@pytest.mark.parametrize(("line", "message"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_a_refusal_is_one_line(run: Run, line: str, message: str) -> None:
    result = run(*line.split())
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


def test_all_problems_come_at_once(run: Run) -> None:
    result = run("pp=0", "tp=four", "hardwre=amd", "generate.top_p=3", "hydra.zz=1")
    assert result.code == 2
    assert result.err.splitlines() == [
        "builder: 5 problems",
        "  hydra.zz=1: Hydra has no such key; did you mean hydra.run?",
        "  hardwre=amd: there is no such key; did you mean hardware?",
        "  generate.top_p=3: task=build has no such key; only task=generate has it",
        "  tp=four: is no integer; use at least 1 and at most 65,536",
        f"  pp=0: {RANGE}",
    ]


def test_experts_that_do_not_divide(run: Run) -> None:
    result = run("model=v4_flash", "ep=3")
    assert result.code == 2
    assert "  ep=3: 256 experts do not divide by 3" in result.err


@pytest.mark.parametrize("task", ["build", "verify", "generate", "convert", "bench", "search", "export", "import"])
def test_a_missing_checkpoint_is_refused_under_any_task(run: Run, tmp_path: Path, task: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    works = "give the folder that holds config.json"
    for name, reason in (
        ("nope", "there is no such folder"),
        ("empty", "the folder holds no config.json"),
        ("file", "is a file, not a folder"),
    ):
        result = run(f"task={task}", f"checkpoint={name}")
        assert (result.code, result.err) == (2, f"builder: checkpoint={name}: {reason}; {works}\n")


def test_a_checkpoint_that_holds_another_model(run: Run, tmp_path: Path, flash_config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(flash_config))
    result = run("task=plan", "model=v4_pro", f"checkpoint={tmp_path}")
    assert result.code == 2
    assert result.err.startswith(f"builder: checkpoint={tmp_path}: holds another model: hidden_size is 4096 there")
    assert result.err.endswith("; leave model= out, or name the model of that folder\n")


@pytest.mark.parametrize("variable", ["HYDRA_FULL_ERROR", "OC_CAUSE"])
def test_no_traceback_whatever_the_environment_says(run: Run, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert run("pp=0").err == f"builder: pp=0: {RANGE}\n"


def test_out_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in ("file", "file/below"):
        result = run("task=plan", f"out={out}")
        reason = "is a file, or lies below one; give a folder that can be written"
        assert (result.code, result.err) == (2, f"builder: out={out}: {reason}\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-m ~spec", "~spec: nothing can be taken away; use spec=none"),
        (
            "-m pp=interval(1,2)",
            "pp=interval(1,2): cannot be counted out; use a list (1,2,4), range(1,5) or choice(1,2,4)",
        ),
        ("-m hydra.verbose=true,false", "hydra.verbose=true,false: belongs to the sweep as a whole; give one value"),
        ("-m output=json,table", "output=json,table: belongs to the sweep as a whole; give one value"),
        ("-m +hydra.zzz=1 pp=1,2", "hydra.zzz=1: Hydra has no such key; did you mean hydra.run?"),
        ("-m pp=glob(*)", "pp=glob(*): matches no option; see --help for the options"),
        ("-m seed=range(1000000)", "-m: asks for more than 100,000 rows; sweep over fewer values"),
        ("-m --cfg job", "--multirun and --cfg: each asks for something else; give one of them"),
        ("--resolve", "--resolve: says how to print a configuration; add --cfg job"),
        ("--cfg jobb", "--cfg=jobb: is not known; did you mean job? use one of job, hydra, all"),
        ("--cfg job -p hardwar", "--package=hardwar: there is no such node; did you mean hardware?"),
        ("--config-dir nope", "--config-dir=nope: there is no such folder; give an existing folder"),
        ("-sc", "--shell-completion: needs a shell; write builder -sc install=bash (or fish, zsh; uninstall=…)"),
    ],
)
def test_a_command_that_makes_no_sense(run: Run, line: str, message: str) -> None:
    result = run(*line.split())
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


def test_text_that_the_grammar_cannot_read(run: Run) -> None:
    result = run("pp=[1")
    assert result.code == 2
    assert result.err.startswith("builder: pp=[1: cannot be read (")
    assert result.err.endswith("); put the value in quotes of its own: 'pp=\"…\"'\n")


def test_a_launcher_that_is_not_there(run: Run) -> None:
    # Which ones are there depends on what is installed beside Hydra.
    result = run("hydra/launcher=joblibb")
    assert result.code == 2
    assert result.err.startswith("builder: hydra/launcher=joblibb: is not known; ")
    assert "basic" in result.err


def test_an_fp8_cut_inside_a_block_says_what_is_cut(run: Run) -> None:
    checkpoint = Path(__file__).parent / "data" / "checkpoints" / "tiny-fp4"
    result = run("task=plan", f"checkpoint={checkpoint}", "tp=2", "hardware=cpu")
    assert result.code == 2
    assert "o_groups·o_lora_rank 64 / 2 = 32 is no multiple of 128, one block of scales; use tp=1" in result.err


def test_a_huge_seed_and_a_missing_head_are_refused(run: Run) -> None:
    assert run("seed=18446744073709551616").code == 2
    message = "builder: spec.checkpoint=/nope: there is no such folder; give the folder of the drafter's files\n"
    assert run("spec=eagle", "spec.checkpoint=/nope").err == message


def test_values_nested_without_end_are_refused(run: Run) -> None:
    result = run("pp=" + "[" * 3000 + "]" * 3000)
    assert result.code == 2
    assert result.err.count("\n") == 1


def test_a_prompt_of_question_marks_is_text(run: Run) -> None:
    assert run("task=plan", "model=tiny", "hardware=cpu", "prompt=???", "output=json").code == 0
