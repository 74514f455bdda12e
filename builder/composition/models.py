"""Models that are read from a ``config.json``: of ``checkpoint``, of a custom model, of a draft's own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from builder.composition.hydra_groups import Tree
from builder.composition.typed import read_node, show
from builder.errors import ConfigError, Problem
from builder.schema.config_json import differing_fields, known_name, read_config_json
from builder.schema.model import ModelConfig

CUSTOM = "custom"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one model comes from. ``node``: its place in the tree; ``group``: how it is chosen (``model@draft``)."""

    node: str
    group: str
    folder_key: str
    folder: str | None
    config: str | None
    option: str
    named: bool

    def read(self, shipped: Callable[[], Mapping[str, ModelConfig]]) -> Tree | None:
        """The model's values where a file gives them, None where the group's option does. Raises ConfigError."""
        if self.option == CUSTOM and self.config is not None:
            return _as_node(read_config_json(self.config, f"{self.node}.config"), self.config, shipped)
        if self.folder is not None:
            path = config_in(self.folder, self.folder_key)
            if not self.named or self.option == CUSTOM:
                return _as_node(read_config_json(path, self.folder_key), path, shipped)
        if self.option == CUSTOM:
            works = f"give {self.node}.config=PATH of a config.json"
            raise ConfigError([Problem(self.group, CUSTOM, "a custom model needs its config.json", works)])
        return None

    def compare(self, model: ModelConfig) -> None:
        """Refuse a named model that the folder does not hold. Raises ConfigError."""
        if self.folder is None or not self.named or (self.option == CUSTOM and self.config is None):
            return
        held = read_config_json(config_in(self.folder, self.folder_key), self.folder_key)
        words = [
            f"{name} is {show(getattr(held, name))} there and {show(getattr(model, name))} in {self.group}={model.name}"
            for name in differing_fields(held, model)
        ]
        if words:
            works = f"leave {self.group}= out, or name the model of that folder"
            raise ConfigError(
                [Problem(self.folder_key, self.folder, f"holds another model: {', '.join(words)}", works)]
            )


def config_in(folder: str, key: str) -> str:
    """The ``config.json`` of a checkpoint folder. Raises ConfigError where there is none."""
    path = Path(folder)
    try:
        if (path / "config.json").is_file():
            return str(path / "config.json")
        reason = "there is no such folder"
        if path.exists():
            reason = "the folder holds no config.json" if path.is_dir() else "is a file, not a folder"
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
    raise ConfigError([Problem(key, folder, reason, "give the folder that holds config.json")])


def _as_node(model: ModelConfig, path: str, shipped: Callable[[], Mapping[str, ModelConfig]]) -> Tree:
    name = known_name(model, shipped())
    return {**dataclasses.asdict(model), "name": name or CUSTOM, "config": path}


def model_of(node: object) -> ModelConfig | None:
    """The typed model of a node that is complete, None of any other."""
    found: list[Problem] = []
    model = read_node(ModelConfig, node, "model", found.append)
    return None if found else model
