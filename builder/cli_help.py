"""``--help``: what builder is, and every group, option and key with one line each, read from the YAML files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.paths import conf_dir
from builder.schema.config import TASKS

_NARROW, _WIDE = 22, 36
"""Columns of keys of the top level, and of groups."""

_HEAD = """\
builder turns a configuration into a DeepSeek-V4: it assembles exactly the parts that each rank needs, and says
what they cost to the byte before anything is launched.

    python -m builder hardware=amd spec=none pp=4                     # what each of four stages holds, and does it fit
    python -m builder task=plan model=v4_flash spec=mtp output=json   # the same as JSON, without assembling
    python -m builder -m hardware=amd,nvidia spec=none,mtp pp=2,4,8   # sweep: one row per combination

A setting is GROUP=OPTION or KEY=VALUE. --cfg job prints all keys with their values, --cfg job -p runtime one group.
"""

_FLAGS = """\
Flags
    -m, --multirun            sweep over lists (1,2,4), range(1,5), glob(*)
    -c, --cfg job|hydra|all   print the configuration instead of running; --resolve: without interpolations
    -p, --package NODE        with --cfg: one node of it
    -cd, --config-dir DIR     more groups and options from DIR (DIR/hardware/mine.yaml, DIR/experiment/x.yaml)
    -cp, --config-path DIR    run again from the config.yaml that an earlier run saved with out=DIR
    -cn, --config-name NAME   another primary configuration: a name in DIR, or a file
    -i, --info, --hydra-help  about Hydra;  -sc install=bash|fish|zsh: completion for the command builder
    --version, -h, --help

Exit codes
    0  done, and the answer is yes       1  done, and the answer is no (does not fit, does not match)
    2  refused: the configuration or the checkpoint cannot be used; the message says what would work
"""


def help_text(config_dir: str | None = None) -> str:
    """The whole text, with the groups of a user's ``--config-dir`` too."""
    folders = [conf_dir(), *([Path(config_dir)] if config_dir else [])]
    groups = sorted({path.name for folder in folders for path in folder.iterdir() if _is_group(path)})
    parts = [_HEAD, "Keys of the top level\n" + "\n".join(_keys(conf_dir() / "config.yaml")) + "\n", "Groups"]
    parts += ["\n".join([*_group(name, folders), *_group_keys(name)]) + "\n" for name in groups]
    parts += ["Keys of tasks", "\n".join(_task_keys()) + "\n", _FLAGS]
    return "\n".join(parts)


def _is_group(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.yaml"))


def _group(name: str, folders: list[Path]) -> Iterator[str]:
    defaults = (conf_dir() / "config.yaml").read_text(encoding="utf-8")
    yield f"  {name}="
    for folder in folders:
        for path in sorted((folder / name).glob("*.yaml")):
            mark = "  [default]" if f"- {name}: {path.stem}\n" in defaults.replace(" #", "\n#") else ""
            yield f"    {path.stem:<22} {describe(path)}{mark}"


def _group_keys(name: str) -> Iterator[str]:
    """The keys of a group that every option has, or some: each once, from the first file that says what it is."""
    seen: set[str] = set()
    for path in sorted((conf_dir() / name).glob("*.yaml")) if name != "task" else ():
        for line in _keys(path, f"{name}."):
            key = line.partition("=")[0]
            if key not in seen:
                seen.add(key)
                yield line


def describe(path: Path) -> str:
    """The first comment line of a YAML file that is no directive of Hydra's."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").strip()
    return ""


def _keys(path: Path, prefix: str = "") -> Iterator[str]:
    """``key: value # words`` of the root of a file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        key, colon, rest = line.partition(":")
        if colon and key.isidentifier() and " # " in rest:
            value, _, words = rest.partition(" # ")
            yield f"    {prefix + key + '=' + value.strip():<{_WIDE if prefix else _NARROW}} {words}"


def _task_keys() -> Iterator[str]:
    seen: set[str] = set()
    for task in TASKS:
        node = ""
        for line in (conf_dir() / "task" / f"{task}.yaml").read_text(encoding="utf-8").splitlines():
            key, _, rest = line.strip().partition(":")
            if line and not line.startswith((" ", "#")):
                node = key
            elif line.startswith("  ") and not line.strip().startswith("-") and f"{node}.{key}" not in seen:
                seen.add(f"{node}.{key}")
                value, _, words = rest.partition(" # ")
                yield f"    {f'{node}.{key}={value.strip()}':<31} {words}".rstrip()
