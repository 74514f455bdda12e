"""Every option of every group composes to a typed configuration, and every file of conf/ keeps the same form."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import builder
from builder.paths import conf_dir
from builder.schema.config import BuildConfig

GROUPS = {"model", "hardware", "kernels", "parallel", "spec", "cache", "runtime", "task"}
DATA = Path(__file__).resolve().parent / "data"

FILES = sorted(conf_dir().rglob("*.yaml"))
OPTIONS = [(path.parent.name, path.stem) for path in FILES if path.parent != conf_dir()]
CONFIG_FILES = sorted((DATA / "configs").glob("*.json"))

# What an option cannot do without.
COMPANIONS = {
    ("spec", "dspark"): ["model=v4_flash_0731"],
    ("model", "custom"): [f"model.config={CONFIG_FILES[0]}"] if CONFIG_FILES else [],
}


def relative(path: Path) -> str:
    return path.relative_to(conf_dir()).as_posix()


def test_the_groups_are_those_of_the_schema() -> None:
    assert {group for group, _ in OPTIONS} == GROUPS
    assert all(path.parent.parent == conf_dir() for path in FILES if path.parent != conf_dir())


def test_only_yaml_files() -> None:
    """Hydra does not see a .yml file, and says nothing."""
    others = [relative(path) for path in conf_dir().rglob("*") if path.is_file() and path.suffix != ".yaml"]
    assert others == []


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda word: word)
def test_every_option_composes(group: str, option: str) -> None:
    config = builder.compose([f"{group}={option}", *COMPANIONS.get((group, option), [])])
    assert isinstance(config, BuildConfig)
    named = {
        "model": lambda: config.model.name,
        "hardware": lambda: config.hardware.vendor,
        "spec": lambda: config.spec.method,
        "cache": lambda: config.cache.layout,
        "task": lambda: config.task,
    }
    if group in named and option != "custom":
        assert named[group]() == option


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_every_config_json_composes(path: Path) -> None:
    assert isinstance(builder.compose(["model=custom", f"model.config={path}"]), BuildConfig)


@pytest.mark.parametrize("option", [option for group, option in OPTIONS if group == "model" and option != "custom"])
def test_every_model_can_be_the_draft(option: str) -> None:
    if option == "tiny":
        config = builder.compose(["model=tiny", "spec=draft_model", "model@draft=tiny"])
    else:
        config = builder.compose(["spec=draft_model", f"model@draft={option}"])
    assert config.draft is not None
    assert config.draft.name == option


def devices() -> list[tuple[str, str]]:
    files = [path for path in FILES if path.parent.name == "hardware"]
    return [(path.stem, device) for path in files for device in yaml.safe_load(path.read_text("utf-8"))["devices"]]


@pytest.mark.parametrize(("vendor", "device"), devices())
def test_every_device_composes(vendor: str, device: str) -> None:
    config = builder.compose([f"hardware={vendor}", f"hardware.device={device}", "model=tiny"])
    assert config.hardware.device == device
    assert config.hardware.devices[device].source
    assert (config.hardware.total_bytes is None) == (vendor == "cpu")


def comments(path: Path) -> list[str]:
    """The comment lines at the top, without Hydra's own ``@package``."""
    lines: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.removeprefix("# "))
    return lines


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_each_file_says_what_it_is_and_how_to_use_it(path: Path) -> None:
    what, command = comments(path)[:2]
    assert not what.startswith("python")
    assert command.startswith("python -m builder")


def examples() -> list[str]:
    """Commands in the files that name no file, folder or other text of the reader's."""
    found = {comments(path)[1] for path in FILES if len(comments(path)) > 1}
    return sorted(command for command in found if not re.search(r"DIR|FILE|PATH|OPTION|…|'", command))


@pytest.mark.parametrize("command", examples())
def test_the_commands_in_the_files_compose(command: str) -> None:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "builder"]
    assert isinstance(builder.compose(words[3:]), BuildConfig)


def entries(path: Path) -> list[Any]:
    document = yaml.safe_load(path.read_text("utf-8")) or {}
    return document.get("defaults", [])


@pytest.mark.parametrize("path", [path for path in FILES if entries(path)], ids=relative)
def test_defaults_lists(path: Path) -> None:
    """A misspelt ``optional`` or ``override`` is taken as the name of a group; ``_self_`` comes last and is written."""
    assert entries(path)[-1] == "_self_"
    for entry in entries(path)[:-1]:
        if isinstance(entry, str):
            assert (path.parent / f"{entry}.yaml").is_file(), f"{entry}: no such option beside {relative(path)}"
            continue
        ((key, option),) = entry.items()
        *keywords, name = key.split()
        assert set(keywords) <= {"optional", "override"}, f"{key!r}: not a keyword of a defaults list"
        group = name.partition("@")[0].removeprefix("/")
        assert group in GROUPS, f"{key!r}: no group {group}"
        if "${" not in str(option):
            assert (conf_dir() / group / f"{option}.yaml").is_file(), f"{key}: {option}: no such option"
