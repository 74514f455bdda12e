"""A serve command as a shell would see it: the engine, the environment before it, and its flags with their values."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from builder.engines.command import ENGINES
from builder.errors import ConfigError, Problem
from builder.schema.fields import nearest

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROGRAMS = {
    ("vllm", "serve"): "vllm",
    ("vllm.entrypoints.openai.api_server",): "vllm",
    ("sglang", "serve"): "sglang",
    ("sglang.launch_server",): "sglang",
}
_SHELL = ("&&", "||", "|", ";", ">", ">>", "<", "&", "2>&1")
_WORKS = "give one command: vllm serve … or sglang serve … (or python -m of either)"
_SHORT = {
    "vllm": {
        "-tp": "tensor-parallel-size",
        "-pp": "pipeline-parallel-size",
        "-dp": "data-parallel-size",
        "-ep": "enable-expert-parallel",
        "-dcp": "decode-context-parallel-size",
        "-pcp": "prefill-context-parallel-size",
        "-q": "quantization",
        "-cc": "compilation-config",
        "-ac": "attention-config",
        "-sc": "speculative-config",
        "-O": "optimization-level",
        "-n": "nnodes",
        "-r": "node-rank",
    },
    "sglang": {},
}
_ALIASES = {
    "vllm": {"device-memory-utilization": "gpu-memory-utilization"},
    "sglang": {
        "model": "model-path",
        "tp": "tp-size",
        "tensor-parallel-size": "tp-size",
        "pp": "pp-size",
        "pipeline-parallel-size": "pp-size",
        "dp": "dp-size",
        "data-parallel-size": "dp-size",
        "ep": "ep-size",
        "expert-parallel-size": "ep-size",
    },
}


@dataclass(slots=True)
class Read:
    """A command, taken apart. flags: by full name without dashes, the last counts; unknown: as they were written."""

    engine: str
    environment: dict[str, str]
    flags: dict[str, Any] = field(default_factory=dict[str, Any])
    unknown: list[str] = field(default_factory=list[str])

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a flag; what was taken is understood."""
        return self.flags.pop(name, default)


@cache
def known_flags(engine: str) -> dict[str, str]:
    """Every flag of the engine by its full name: ``switch``, ``value``, ``maybe`` (a value or none) or ``many``."""
    found: dict[str, str] = {}
    for line in (Path(__file__).parent / f"flags_{engine}.txt").read_text(encoding="utf-8").splitlines():
        kind, _, names = line.partition(": ")
        if not line.startswith("#"):
            found |= dict.fromkeys(names.split(), kind)
    return found


def read_command(text: str) -> Read:
    """Take a command apart. Raises ConfigError, one line, for what is none."""
    try:
        words = shlex.split(text.replace("\\\n", " ").replace("\n", " "))
    except ValueError as error:
        raise _refused(text, f"cannot be read ({str(error).lower()})", "close every quote") from None
    environment: dict[str, str] = {}
    while words and (words[0] == "env" or _VARIABLE.match(words[0])):
        name, equals, value = words.pop(0).partition("=")
        if equals:
            environment[name] = value
    shell = next((word for word in words if word in _SHELL), None)
    if shell is not None:
        raise _refused(text, f"holds {shell}, which is the shell's", "leave the shell's words out")
    engine, rest = _engine(words)
    if engine is None:
        what = f"starts with {words[0]}, which is no engine" if words else "holds no command"
        raise _refused(text, what, _WORKS)
    read = Read(engine, environment)
    _flags(read, rest, text)
    return read


def _refused(text: str, reason: str, works: str) -> ConfigError:
    shown = " ".join(text.split())
    return ConfigError([Problem("command", shown if len(shown) <= 60 else f"{shown[:60]}…", reason, works)])


def _engine(words: list[str]) -> tuple[str | None, list[str]]:
    rest = list(words)
    if rest and re.fullmatch(r"python[0-9.]*", Path(rest[0]).name):
        rest = rest[1:]
        while rest and rest[0] in ("-u", "-m"):
            rest = rest[1:]
    for program, engine in _PROGRAMS.items():
        if tuple([Path(rest[0]).name, *rest[1 : len(program)]] if rest else []) == program:
            return engine, rest[len(program) :]
    return None, rest


def _flags(read: Read, words: list[str], text: str) -> None:
    known, rest = known_flags(read.engine), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if read.engine == "vllm" and "model" not in read.flags:
                read.flags["model"] = word
            else:
                read.unknown.append(word)
            continue
        written, equals, value = word.partition("=")
        name, dot, path = _full(read.engine, written).partition(".")
        kind = known.get(name)
        taken: list[str] = [value] if equals else []
        if not equals and (kind != "switch" or dot):
            most = len(rest) if kind == "many" else 1
            while rest and len(taken) < most and not _is_flag(rest[0], read.engine):
                taken.append(rest.pop(0))
        if kind is None:
            guess = nearest(name, known)
            read.unknown.append(" ".join([written, *taken]) + (f" (did you mean --{guess}?)" if guess else ""))
        elif dot:
            _merge(read, name, path, taken)
        elif not taken and kind in ("value", "many"):
            raise _refused(text, f"{written} has no value", f"write {written} VALUE")
        elif equals and kind == "switch":
            raise _refused(text, f"{written} takes no value", f"write {written}")
        else:
            _set(read, name, written, taken, text)


def _full(engine: str, written: str) -> str:
    """A flag's full name: dashes for underscores, long for short."""
    head, dot, path = written.partition(".")
    if head in _SHORT[engine]:
        return _SHORT[engine][head] + dot + path
    name = head.lstrip("-").replace("_", "-")
    return _ALIASES[engine].get(name, name) + dot + path


def _is_flag(word: str, engine: str) -> bool:
    return word.startswith("--") or word.partition("=")[0].partition(".")[0] in _SHORT[engine]


def _merge(read: Read, name: str, path: str, taken: list[str]) -> None:
    # --attention_config.use_fp4_indexer_cache=True: one key of a setting that is a tree.
    node = read.flags.get(name)
    top = node = cast("dict[str, Any]", node) if isinstance(node, dict) else {}
    *parents, last = path.split(".")
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = _literal(taken[0]) if taken else True
    read.flags[name] = top


def _set(read: Read, name: str, written: str, taken: list[str], text: str) -> None:
    if not taken:
        read.flags[name] = True
    elif len(taken) > 1:
        read.flags[name] = taken
    elif name.endswith(("-config", "-overrides")) and taken[0].lstrip().startswith("{"):
        try:
            value = json.loads(taken[0])
        except json.JSONDecodeError as error:
            raise _refused(text, f"{written} holds no JSON ({error})", "put the JSON in single quotes") from None
        earlier = read.flags.get(name)
        read.flags[name] = {**earlier, **value} if isinstance(earlier, dict) else value
    else:
        read.flags[name] = taken[0]


def _literal(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text


def number(read: Read, flag: str, *, least: int = 1) -> int | None:
    """A whole number behind a flag, 1k and 1K as the engines read them; None where the flag is not there."""
    value = read.take(flag)
    if value is None:
        return None
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", str(value))
    if found:
        scale = {"": 1, "k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]]
        amount = int(found[1]) * scale if "." not in found[1] else float(found[1]) * scale
        if amount == int(amount) and amount >= least:
            return int(amount)
    name = ENGINES[read.engine].split()[0]
    raise ConfigError([Problem(f"--{flag}", value, f"is no number that {name} takes", f"use at least {least}")])


def fraction(read: Read, flag: str) -> float | None:
    """A share of the memory behind a flag."""
    value = read.take(flag)
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError([Problem(f"--{flag}", value, "is no share", "use more than 0 and at most 1")])
    return share


def layers_of(text: str, variable: str) -> str:
    """The layer counts of an environment variable, as ``parallel.partition`` takes them."""
    if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", text):
        raise ConfigError([Problem(variable, text, "is no list of layer counts", "write 16,15,15,15")])
    return f"[{text.replace(' ', '')}]"
