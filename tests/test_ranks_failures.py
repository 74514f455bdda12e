"""A rank that is killed, hangs or raises ends the job: within a set time, with its cause, and nothing is left."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import FLASH, copy_of

import builder
from builder.errors import CheckpointError, ConfigError, RankError
from builder.runtime.model import torch_device
from builder.runtime.ranks import board
from builder.runtime.ranks.board import Board, Failure
from builder.runtime.ranks.launched import Launched, check_count, first_node, launched
from builder.runtime.ranks.start import run_ranks
from builder.runtime.ranks.watch import failure_of
from builder.runtime.ranks.worker import lead

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 25
"""Seconds from a kill to the end, on a busy machine."""

MARK = "BUILDER_TEST_OF_FAILURES"


@contextmanager
def long_run(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A generation that takes minutes."""
    arguments = [
        "task=generate",
        f"checkpoint={FLASH}",
        "hardware=cpu",
        "spec=mtp",
        "prompt_ids=[[1,2,3],[4,5,6,7]]",
        "generate.max_new_tokens=1000",
        "generate.ignore_eos=true",
        "output=json",
        f"out={folder / 'out'}",
        *words,
    ]
    told = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-m", "builder", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=told,
        cwd=folder,
        # A background shell hands down an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads yet
    )
    try:
        yield process
    finally:
        for pid in ranks_of(folder):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def ranks_of(folder: Path) -> dict[int, int]:
    """Process ids of a run's ranks, with their ranks."""
    found: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            told = dict(line.split("=", 1) for line in (process / "environ").read_text().split("\0") if "=" in line)
        except (OSError, UnicodeDecodeError):
            continue
        if b"builder.runtime.ranks" in command and told.get(MARK) == str(folder):
            found[int(process.name)] = int(told["RANK"])
    return found


def wait_for_ranks(folder: Path, count: int) -> dict[int, int]:
    until = time.monotonic() + 60
    while len(found := ranks_of(folder)) < count:
        assert time.monotonic() < until, "the ranks do not start"
        time.sleep(0.05)
    return found


def wait_until_joined(folder: Path, count: int) -> dict[int, int]:
    """The same, once they talk with each other (and have shown that they live)."""
    until = time.monotonic() + 90
    while True:
        ranks = wait_for_ranks(folder, count)
        if all(sockets_of(pid) >= 4 for pid in ranks):
            time.sleep(1.5)
            return ranks
        assert time.monotonic() < until, "the ranks do not join"
        time.sleep(0.2)


def sockets_of(pid: int) -> int:
    files = Path(f"/proc/{pid}/fd").iterdir()
    return sum(str(file.readlink()).startswith("socket:") for file in files if file.is_symlink())


def end_of(process: subprocess.Popen[str], folder: Path, seconds: float = LIMIT) -> tuple[int, str]:
    """Exit code and standard error, once everything that must hold afterwards does."""
    out, err = process.communicate(timeout=seconds)
    assert out == "", "no partial output"
    assert ranks_of(folder) == {}, "nobody is left"
    assert [*(folder / "out").iterdir()] == [], "no partial file"
    return process.returncode, err


def kill_one(folder: Path, words: str, seconds: float, choice: random.Random, number: int = signal.SIGKILL) -> None:
    size = {"pp=2": 2, "tp=2": 2, "dp=2 ep=2": 2, "pp=2 tp=2": 4}[words]
    with long_run(*words.split(), folder=folder) as process:
        wait_for_ranks(folder, size)
        time.sleep(seconds)
        pid, rank = choice.choice([*ranks_of(folder).items()])
        os.kill(pid, number)
        code, err = end_of(process, folder)
    assert (code, err) == (2, f"builder: rank {rank} was killed by signal 9 (SIGKILL); the others were stopped\n")


@pytest.mark.parametrize(("words", "seconds"), [("pp=2", 0.5), ("tp=2", 6.0)])
def test_a_killed_rank_ends_the_job(tmp_path: Path, words: str, seconds: float) -> None:
    kill_one(tmp_path, words, seconds, random.Random(1))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_thirty_kills_at_random_moments(tmp_path: Path, number: int) -> None:
    choice = random.Random(number)
    words = choice.choice(["pp=2", "tp=2", "dp=2 ep=2", "pp=2 tp=2"])
    kill_one(tmp_path, words, choice.uniform(0, 12), choice)


def test_a_rank_that_hangs_ends_the_job(tmp_path: Path) -> None:
    with long_run("pp=2", "parallel.silence_seconds=4", folder=tmp_path) as process:
        ranks = wait_until_joined(tmp_path, 2)
        pid = next(pid for pid, rank in ranks.items() if rank == 1)
        os.kill(pid, signal.SIGSTOP)
        code, err = end_of(process, tmp_path)
    assert (code, err) == (
        2,
        "builder: rank 1 has shown no life for 4 seconds: it hangs, or its machine is gone\n",
    )


def test_ranks_do_not_outlive_the_builder_that_started_them(tmp_path: Path) -> None:
    with long_run("tp=2", folder=tmp_path) as process:
        wait_for_ranks(tmp_path, 2)
        time.sleep(4)
        process.kill()
        process.communicate()
        until = time.monotonic() + LIMIT
        while ranks_of(tmp_path):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_control_c_ends_all_of_it_quietly(tmp_path: Path) -> None:
    with long_run("pp=2", folder=tmp_path) as process:
        wait_until_joined(tmp_path, 2)
        for pid in (*ranks_of(tmp_path), process.pid):
            os.kill(pid, signal.SIGINT)
        assert end_of(process, tmp_path) == (130, "")


def test_a_checkpoint_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    folder = copy_of(FLASH, tmp_path / "checkpoint")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with long_run("tp=2", f"checkpoint={folder}", folder=tmp_path) as process:
        code, err = end_of(process, tmp_path, seconds=90)
    assert code == 2
    assert err.startswith(f"builder: {file}: ")
    assert err.count("\n") == 1


def test_in_python_the_checkpoints_fault_is_a_checkpoint_error() -> None:
    assert isinstance(Failure(1, "x", files=True).error(), CheckpointError)
    assert isinstance(Failure(1, "x").error(), RankError)


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


def test_who_started_this_process() -> None:
    assert launched({}) is None
    agent = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": "2"}
    assert launched(agent) == Launched("torchrun", 1, 4, 1, 2, "n1", 29500, hosts_board=False)
    assert launched({**TORCHRUN, "RANK": "0"}) == Launched("the launcher", 0, 4, 1, 4, "n1", 29500, hosts_board=True)
    slurm = {
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_JOB_ID": "12345",
        "SLURM_STEP_ID": "0",
    }
    assert launched(slurm) == Launched("srun", 5, 8, 1, 4, "gpu07", 32345, hosts_board=False)
    assert launched({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"RANK": "x"},
            "RANK=x: is no whole number from 0 on, in the environment that a launcher makes; unset it, or ",
        ),
        ({"RANK": "-1"}, "RANK=-1: is no whole number from 0 on"),
        ({"RANK": "5"}, "RANK=5: is no rank of WORLD_SIZE=4; use 0 to 3"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0: is no number of processes; the launcher sets it; unset it"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999: is no port; use 1 to 65535"),
    ],
)
def test_numbers_of_a_launcher_that_cannot_be(told: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        launched({**TORCHRUN, **told})
    assert str(error.value).startswith(message)


def test_numbers_of_slurm_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="SLURM_STEP_NUM_TASKS=x: is no whole number"):
        launched({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "x"})


def place(host: str, port: int) -> Launched:
    return Launched("torchrun", 1, 2, 1, 2, host, port, hosts_board=False)


def test_a_host_that_is_none_and_one_that_does_not_listen() -> None:
    with pytest.raises(RankError, match=r"^MASTER_ADDR=no\.such\.host\.invalid: is no address of a machine: "):
        Board.join(place("no.such.host.invalid", 29500))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = f"rank 1 cannot reach 127.0.0.1:{port}: Connection refused, for 0.1 seconds; is the first process started"
    with pytest.raises(RankError, match=f"^{re.escape(message)}"):
        Board.join(place("127.0.0.1", port), 0.1)


def test_a_port_where_something_else_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "ANSWER_SECONDS", 1.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(RankError, match=r"what listens there has not answered for 1 seconds$"):
            Board.join(place("127.0.0.1", other.getsockname()[1]), 5)


def test_more_ranks_than_one_machine_should_have_are_refused() -> None:
    config = builder.compose(["task=generate", f"checkpoint={FLASH}", "hardware=cpu", "dp=65", "prompt_ids=[1]"])
    with pytest.raises(ConfigError) as error:
        run_ranks(config)
    assert str(error.value) == (
        "pp·dp·tp=65: builder starts at most 64 ranks on one machine; start them on several with torchrun or srun"
    )


def test_a_launchers_ranks_compute_once() -> None:
    hosted = Board.host()
    hosted.put("config", "of the first")
    config = builder.compose(["task=generate", f"checkpoint={FLASH}", "hardware=cpu", "pp=2", "prompt_ids=[1]"])
    with pytest.raises(ConfigError, match="task=generate: the processes that torchrun started compute once; start "):
        lead(config, place("127.0.0.1", hosted.port))


@pytest.mark.parametrize(
    ("error", "lost", "text"),
    [
        (RuntimeError("[x] Connection closed by peer"), True, "rank 3 lost the connection to another rank: "),
        (ValueError("my own gloo bug\nmore"), False, "rank 3 stopped: ValueError: my own gloo bug"),
        (RuntimeError("y" * 10_000), False, "rank 3 stopped: RuntimeError: "),
        (CheckpointError("file: tensor: expected\n found"), False, "file: tensor: expected found"),
    ],
)
def test_what_a_rank_says_of_its_error(error: Exception, lost: bool, text: str) -> None:
    failure = failure_of(3, error)
    assert failure.lost == lost
    assert failure.text.startswith(text)
    assert len(failure.text) < 500
    assert "\n" not in failure.text


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],login1", "gpu07"), ("a,b", "a"), ("n1", "n1"), ("rack-3-[2,5]", "rack-3-2")],
)
def test_the_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("found", "told", "message"),
    [
        (
            Launched("torchrun", 0, 2, 0, 2, "n1", 1, hosts_board=False),
            {},
            "pp·dp·tp=4: torchrun started 2 processes; start 4, or change pp, dp and tp; without a launcher builder "
            "starts its ranks itself",
        ),
        (
            None,
            {"ACCELERATE_USE_CPU": "True"},
            "pp·dp·tp=4: accelerate launch started 1 process (with --cpu it does so whatever --num_processes says); "
            "use accelerate launch --multi_gpu --num_processes 4 -m builder, also on the CPU, or start builder "
            "without a launcher",
        ),
    ],
)
def test_another_number_of_processes_is_refused(found: Any, told: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_count(found, 4, told)
    assert str(error.value) == message
    check_count(None, 1, told)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = ["task=generate", f"checkpoint={FLASH}", "hardware=cpu", "pp=2", "prompt_ids=[1]"]
        done = subprocess.run(
            [sys.executable, "-m", "builder", *arguments],
            env={**os.environ, **told, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"builder: port {port} at 127.0.0.1 cannot be opened: ")
    assert done.stderr.endswith("; set MASTER_PORT to one that is free\n")
    assert done.stderr.count("\n") == 1


def test_two_ranks_on_one_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = builder.compose(["task=plan", "hardware=nvidia", "model=tiny", "pp=2"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError) as error:
        torch_device(config, 1, 2)
    assert str(error.value) == (
        "hardware=nvidia: 2 ranks on this machine, and devices that torch finds here: 1; each rank needs one of its "
        "own: start at most 1 a machine, or use hardware=cpu"
    )


ANSWERS = """
import sys
from builder.runtime.ranks.launched import Launched
from builder.runtime.ranks.watch import Answers
import time
place = Launched("torchrun", 1, 2, 1, 2, "n1", 29500, hosts_board=False)
with Answers(place, seconds=1.0) as answers:
    for _ in range(20):
        answers.heard()
        time.sleep(0.1)
    print("still there", flush=True)
    time.sleep(30)
"""


def test_a_rank_that_waits_for_its_configuration_ends_when_nobody_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "still there\n")
    assert done.stderr == "builder: rank 1 lost the connection to n1:29500: no answer for 1 seconds\n"
