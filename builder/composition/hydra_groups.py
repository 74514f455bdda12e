"""Hydra composes the group choices; this module is the only one that starts it.

A host application may be inside its own ``@hydra.main``: everything that Hydra keeps globally is put aside while
ours works, and put back afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from builder.errors import ConfigError, Problem

VERSION_BASE = "1.3"
JOB_NAME = "builder"
PRIMARY = "config"

_STATEFUL: tuple[type, ...] = (GlobalHydra, HydraConfig, VersionBase, JobRuntime)
_HYDRAS_OWN = ("hydra", "_dummy_empty_config_.yaml")
"""Nodes of the ConfigStore that are not a host's: Hydra would take a host's ``config`` for the schema of ours."""

_LOCK = threading.RLock()

Tree = dict[str, Any]
"""A configuration as plain dicts and lists, interpolations still text."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What Hydra made of the group choices: the tree, the choice of every group, and Hydra's own node."""

    tree: Tree
    choices: dict[str, str]
    hydra: DictConfig


class MissingOptionError(ConfigError):
    """A defaults list names ``path`` (``kernels/mine``), and there is no such file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__([Problem("configuration", None, reason)])
        self.path = path


class HydraGroups:
    """The groups below ``conf`` and below the folders of ``search``."""

    def __init__(self, conf: Path, search: Iterable[str] = ()) -> None:
        self.search = tuple(search)
        self._own: dict[type, Any] = {}
        self._options: dict[str, list[str]] = {}
        with self.hydra():
            initialize_config_dir(str(conf), job_name=JOB_NAME, version_base=VERSION_BASE)

    @contextmanager
    def hydra(self) -> Generator[None]:
        """Work with this object's Hydra in place of the host's."""
        with _LOCK:
            instances = cast("dict[type, Any]", Singleton._instances)  # pyright: ignore[reportPrivateUsage]
            resolvers = dict(BaseContainer._resolvers)  # pyright: ignore[reportPrivateUsage]
            store = ConfigStore.instance()
            nodes = store.repo
            host = {kind: instances.pop(kind) for kind in _STATEFUL if kind in instances}
            instances.update(self._own)
            store.repo = {name: node for name, node in nodes.items() if name in _HYDRAS_OWN}
            try:
                yield
            finally:
                self._own = {kind: instances.pop(kind) for kind in _STATEFUL if kind in instances}
                instances.update(host)
                store.repo = nodes
                BaseContainer._resolvers = resolvers  # pyright: ignore[reportPrivateUsage]

    @property
    def loader(self) -> ConfigLoader:
        """Hydra's loader; call it inside ``hydra()``."""
        return GlobalHydra.instance().config_loader()

    def names(self) -> list[str]:
        """The groups of the top level, Hydra's own left out."""
        with self.hydra():
            found = {name for name in self._list("", ObjectType.GROUP) if name != "hydra" and not name.startswith("_")}
        return sorted(found)

    def options(self, group: str) -> list[str]:
        """What can be chosen in a group."""
        if group not in self._options:
            with self.hydra():
                self._options[group] = self._list(group, ObjectType.CONFIG)
        return self._options[group]

    def _list(self, group: str, kind: ObjectType) -> list[str]:
        names = set(self.loader.get_group_options(group, kind, overrides=self._search_overrides()))
        return sorted(name for name in names if not name.startswith("__"))

    def _search_overrides(self, extra: Iterable[str] = ()) -> list[str]:
        folders = [*self.search, *extra]
        quoted = [QuotedString(f"file://{folder}", Quote.single).with_quotes() for folder in folders]
        return [f"hydra.searchpath=[{','.join(quoted)}]"] if quoted else []

    def compose(self, overrides: Iterable[str]) -> Groups:
        """Compose group choices, written as overrides.

        Raises:
            MissingOptionError: a defaults list names an option that does not exist.
            ConfigError: a file of a group cannot be read or composed, or a choice has no place in the defaults list.
        """
        try:
            with self.hydra():
                composed = compose(PRIMARY, [*self._search_overrides(), *overrides], return_hydra_config=True)
        except MissingConfigException as error:
            raise MissingOptionError(error.missing_cfg_file or "", plain(error)) from error
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError([Problem("configuration", None, plain(error))]) from error
        node = cast("DictConfig", composed.hydra)
        tree = cast("Tree", OmegaConf.to_container(composed))
        del tree["hydra"]
        choices = {str(key): str(value) for key, value in node.runtime.choices.items() if value is not None}
        return Groups(tree, {key: value for key, value in choices.items() if not key.startswith("hydra/")}, node)


def plain(error: BaseException) -> str:
    """The words of an error of Hydra, OmegaConf or YAML in one line, without their advice."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) and not str(error) else error
    lines = [line.strip() for line in str(cause).splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("To append", "full_key", "object_type", "See http"))
    ]
    return " ".join(kept).partition(" Config search path:")[0] or type(error).__name__
