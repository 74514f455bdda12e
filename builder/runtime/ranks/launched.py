"""Who started this process: nobody, builder itself, torchrun, accelerate launch or srun. Read from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.errors import ConfigError, Problem

PARENT = "BUILDER_PARENT"
"""Process id of the builder that started this rank."""

ENDED_EARLY = 2
"""Exit code of every rank of a job that did not come to its end."""

CUT_OFF = 3
"""Exit code of a rank that builder did not answer."""

_FIRST_PORT, _PORTS, _LAST_PORT = 20_000, 20_000, 65_535


@dataclass(frozen=True)
class Launched:
    """This process as its launcher numbers it. hosts_board: it opens the port at ``host``; attempt: of a restart."""

    by: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int
    hosts_board: bool
    attempt: str = "0"


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """What the launcher says, or None where this process was started by itself (or as the only one of a Slurm step)."""
    told = os.environ if environment is None else environment
    if "RANK" in told and "WORLD_SIZE" in told:
        by = "builder" if PARENT in told else "torchrun" if "TORCHELASTIC_RUN_ID" in told else "the launcher"
        return _checked(_numbered(told, by), "RANK", "WORLD_SIZE")
    if _number(told, "SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_PROCID" in told:
        return _checked(_slurm(told), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    return None


def check_count(found: Launched | None, wanted: int, environment: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if a launcher started another number of ranks than a configuration has."""
    told = os.environ if environment is None else environment
    if found is not None and found.size != wanted:
        reason = f"{found.by} started {found.size} process{'es' if found.size > 1 else ''}"
        works = f"start {wanted}, or change pp, dp and tp; without a launcher builder starts its ranks itself"
        raise ConfigError([Problem("pp·dp·tp", wanted, reason, works)])
    if found is None and wanted > 1 and any(name.startswith("ACCELERATE_") for name in told):
        reason = "accelerate launch started 1 process (with --cpu it does so whatever --num_processes says)"
        works = (
            f"use accelerate launch --multi_gpu --num_processes {wanted} -m builder, also on the CPU, "
            "or start builder without a launcher"
        )
        raise ConfigError([Problem("pp·dp·tp", wanted, reason, works)])


def _checked(found: Launched, rank: str, size: str) -> Launched:
    problems: list[Problem] = []
    if found.size < 1:
        problems.append(Problem(size, found.size, "is no number of processes", "the launcher sets it; unset it"))
    elif found.rank >= found.size:
        problems.append(Problem(rank, found.rank, f"is no rank of {size}={found.size}", f"use 0 to {found.size - 1}"))
    if not 1 <= found.port <= _LAST_PORT:
        problems.append(Problem("MASTER_PORT", found.port, "is no port", f"use 1 to {_LAST_PORT}"))
    if problems:
        raise ConfigError(problems)
    return found


def _numbered(told: Mapping[str, str], by: str) -> Launched:
    rank, size = _number(told, "RANK"), _number(told, "WORLD_SIZE")
    agent = told.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    return Launched(
        by=by,
        rank=rank,
        size=size,
        local_rank=_number(told, "LOCAL_RANK", rank),
        local_size=_number(told, "LOCAL_WORLD_SIZE", size),
        host=told.get("MASTER_ADDR", "127.0.0.1"),
        port=_number(told, "MASTER_PORT", 29_500),
        hosts_board=rank == 0 and not agent and by != "builder",
        attempt=told.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _slurm(told: Mapping[str, str]) -> Launched:
    rank, size = _number(told, "SLURM_PROCID"), _number(told, "SLURM_STEP_NUM_TASKS")
    nodes = told.get("SLURM_STEP_NODELIST", told.get("SLURM_NODELIST", "127.0.0.1"))
    job = _number(told, "SLURM_JOB_ID", 0) + _number(told, "SLURM_STEP_ID", 0)
    return Launched(
        by="srun",
        rank=rank,
        size=size,
        local_rank=_number(told, "SLURM_LOCALID", 0),
        local_size=_tasks_here(told, size),
        host=told.get("MASTER_ADDR", first_node(nodes)),
        port=_number(told, "MASTER_PORT", _FIRST_PORT + job % _PORTS),
        hosts_board=rank == 0,
    )


def first_node(nodes: str) -> str:
    """The first name of Slurm's list: ``gpu[07-09,12],login1`` -> ``gpu07``."""
    found = re.match(r"([^\[,]+)(?:\[([^,\-\]]+))?", nodes)
    return f"{found[1]}{found[2] or ''}" if found else nodes


def _tasks_here(told: Mapping[str, str], size: int) -> int:
    # "4(x2),3" is four tasks on each of two nodes, then three.
    counts: list[int] = []
    for part in told.get("SLURM_STEP_TASKS_PER_NODE", str(size)).split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found:
            counts += [int(found[1])] * int(found[2] or 1)
    node = _number(told, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else size


def _number(told: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = told.get(name, "")
    if text.isdigit():
        return int(text)
    if not text and default is not None:
        return default
    reason = "is no whole number from 0 on, in the environment that a launcher makes"
    raise ConfigError([Problem(name, text, reason, "unset it, or start builder with a launcher")])
