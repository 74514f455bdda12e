"""A primary configuration of the user's own: a ``config.yaml`` that an earlier run saved, or one written by hand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from builder.composition.hydra_groups import PRIMARY, Tree
from builder.composition.line import DRAFT, GROUPS
from builder.composition.typed import show
from builder.errors import ConfigError, Problem
from builder.schema.config import BuildConfig
from builder.schema.parallel import AXES

NOT_SAVED = ("out", "output")
FOLLOWERS = {"cache", "kernels"}
"""Groups whose option follows the hardware unless it is named: saved only when it was."""


@dataclass(frozen=True, slots=True)
class Primary:
    """What a user's file says: choices of groups, values, and a node for Hydra itself."""

    path: str = ""
    choices: dict[str, str] = field(default_factory=dict[str, str])
    values: Tree = field(default_factory=dict[str, Any])


def find_primary(conf: Path, config_path: str | None, config_name: str | None, config_dir: str | None) -> Path | None:
    """The file that ``--config-path``, ``--config-name`` and ``--config-dir`` mean, None for the package's own.

    Raises:
        ConfigError: a folder or the file does not exist.
    """
    for flag, folder in (("--config-path", config_path), ("--config-dir", config_dir)):
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError([Problem(flag, folder, "there is no such folder", "give an existing folder")])
    if config_path is None and config_name is None:
        return None
    name = (config_name or PRIMARY).removesuffix(".yaml")
    folders = [Path(config_path)] if config_path else [Path(config_dir)] if config_dir else []
    candidates = [folder / f"{name}.yaml" for folder in (*folders, *([] if config_path else [conf]))]
    if config_name is not None and (os.sep in config_name or config_name.endswith(".yaml")):
        candidates.insert(0, Path(f"{name}.yaml"))
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        looked = " and ".join(str(path) for path in candidates)
        raise ConfigError(
            [Problem("--config-name", config_name or PRIMARY, "there is no such file", f"looked for {looked}")]
        )
    return None if found.resolve() == (conf / f"{PRIMARY}.yaml").resolve() else found


def read_primary(path: Path) -> Primary:
    """Read a primary file. Raises ConfigError where it cannot be read or its defaults list is not understood."""
    data = read_yaml(path)
    entries = data.pop("defaults", [])
    data.pop("hydra", None)
    if not isinstance(entries, list):
        raise ConfigError([Problem(f"{path}: defaults", show(entries), "must be a list", "write - group: option")])
    choices: dict[str, str] = {}
    for entry in cast("list[Any]", entries):
        choices.update(_choice(path, entry))
    return Primary(str(path), choices, data)


def read_yaml(path: Path) -> Tree:
    """A YAML file that holds a mapping. Raises ConfigError."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())
        raise ConfigError([Problem(str(path), None, f"cannot be read ({words})")]) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError([Problem(str(path), None, "must hold keys and values")])
    return {str(key): value for key, value in cast("dict[Any, Any]", data).items()}


def _choice(path: Path, entry: Any) -> dict[str, str]:
    if entry in ("_self_", PRIMARY):
        return {}
    if isinstance(entry, dict) and len(cast("Tree", entry)) == 1:
        ((key, option),) = cast("Tree", entry).items()
        group = key.split(" ")[-1].lstrip("/")
        if option is None:
            return {}
        if isinstance(option, str | int):
            return {group.replace("@_global_.", "@"): str(option)}
    works = "write - group: option, - config or - _self_"
    raise ConfigError([Problem(f"{path}: defaults", show(cast("object", entry)), "is not understood", works)])


def overridden_groups(folders: Iterable[str | Path], choice: str) -> set[str]:
    """The groups that an option (``experiment/x``) overrides in its own defaults list."""
    for folder in folders:
        path = Path(folder) / f"{choice}.yaml"
        if path.is_file():
            entries = cast("list[Any]", read_yaml(path).get("defaults") or [])
            keys = [str(key) for entry in entries if isinstance(entry, dict) for key in cast("Tree", entry)]
            return {key.split(" ")[-1].lstrip("/").replace("@_global_.", "@") for key in keys if "override " in key}
    return set()


def _is_ours(group: str) -> bool:
    """An experiment is not named again: its values are in the file."""
    return group in GROUPS or group == DRAFT


def saved_text(config: BuildConfig, choices: Mapping[str, str], named: Iterable[str], version: str) -> str:
    """The text of a ``config.yaml`` that gives the same configuration again."""
    values = dataclasses.asdict(config)
    kept = {name: value for name, value in values.items() if value is not None and name not in NOT_SAVED}
    defaults: list[Any] = [
        {group: option}
        for group, option in choices.items()
        if _is_ours(group) and (group not in FOLLOWERS or group in set(named))
    ]
    axes = {axis: getattr(config.parallel, axis) for axis in AXES}
    body = {"defaults": [*defaults, "_self_"], **axes, **kept}
    header = f"# Written by builder {version}. Run it again: python -m builder --config-path FOLDER_OF_THIS_FILE\n"
    return header + yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
