"""One command line after another, composed: choices by Hydra, values one by one, every problem collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.composition import models, primary, resolved, unknown
from builder.composition.chooser import Chooser
from builder.composition.hydra_groups import Groups, HydraGroups, Tree
from builder.composition.line import DRAFT, GROUPS, Line, LineReader
from builder.composition.models import ModelSource
from builder.composition.overrides import Value
from builder.composition.primary import Primary
from builder.composition.result import Composition
from builder.composition.tree import copy_tree, flatten, get, has, merged, node_types, open_nodes, put, top_level
from builder.composition.typed import show
from builder.errors import ConfigError, Problem
from builder.kernels.devices import found_vendor
from builder.paths import conf_dir
from builder.schema.config import COMPUTING_TASKS
from builder.schema.model import ModelConfig
from builder.schema.parallel import AXES


class Composer:
    """Composes command lines over the same files, and keeps what they share (a sweep composes thousands)."""

    def __init__(self, search: Iterable[str] = (), user: Primary | None = None) -> None:
        """search: folders with more groups and options; user: a primary file, in whose folder there may be more too."""
        self.conf = conf_dir()
        self.user = user or Primary()
        folders = [*search, *([str(Path(self.user.path).parent)] if self.user.path else [])]
        self.groups = HydraGroups(self.conf, dict.fromkeys(str(Path(folder).absolute()) for folder in folders))
        self._lines = LineReader(self.groups)
        self._chooser = Chooser(self.groups)

    def compose(self, arguments: Iterable[str]) -> Composition:
        """Compose one command line; its problems are in the result."""
        line = self._lines.read(arguments)
        chosen = self._saved_choices(line.choices) | line.choices
        groups = self._chooser.choose(chosen, line)
        if self._takes_what_is_here(groups, chosen):
            groups = self._chooser.choose(chosen | {"hardware": found_vendor()}, line)
        tree = copy_tree(groups.tree)
        user = self._user_values(groups, line)
        sources = self._read_models(tree, self._sources(tree, groups, chosen, user, line), user, line)
        given = [Value(key, value, show(value)) for key, value in user.items()]
        self._apply(tree, given, groups, line, f"{self.user.path}: ")
        typed = self._apply(tree, _flat(tree, line.values), groups, line)
        return Composition(
            tree=tree,
            choices=groups.choices,
            named=frozenset(chosen),
            typed=frozenset(typed),
            problems=line.problems,
            unsure=frozenset(line.unsure),
            sources=tuple(sources),
        )

    def _takes_what_is_here(self, groups: Groups, chosen: Mapping[str, str]) -> bool:
        """The task runs the model on this machine, and nobody said on what."""
        if groups.choices["task"] not in COMPUTING_TASKS or "hardware" in chosen:
            return False
        return groups.choices["hardware"] == self._chooser.compose({}).choices["hardware"]

    def _saved_choices(self, now: Mapping[str, str]) -> dict[str, str]:
        """The choices of the user's file that the command line leaves standing."""
        beaten = set(now)
        for key, option in now.items():
            if _is_extra(key):
                beaten |= primary.overridden_groups((self.conf, *self.groups.search), f"{key}/{option}")
        return {key: option for key, option in self.user.choices.items() if key not in beaten}

    def _user_values(self, groups: Groups, line: Line) -> Tree:
        """The values of the user's file by dotted key, without those of a group that is chosen anew."""
        if not self.user.values:
            return {}
        before = self._chooser.compose(self.user.choices).choices
        anew = {key for key in line.choices if not _is_extra(key)}
        anew |= {key for key, option in groups.choices.items() if before.get(key) != option}
        skip = {"task"} | {"draft" if key == DRAFT else key for key in anew}
        if "task" in anew:
            skip |= {name for name in self.user.values if name in node_types() and name not in groups.tree}
        if "parallel" in anew:
            skip |= set(AXES)
        if "spec" in anew and "draft" not in groups.tree:
            skip.add("draft")
        values = {key: value for key, value in self.user.values.items() if key not in skip}
        flat = {key: value for name, node in values.items() for key, value in flatten(groups.tree, name, node)}
        for key in open_nodes(groups.tree):
            added = {name: flat.pop(name) for name in list(flat) if name.startswith(f"{key}.")}
            if added:
                flat[key] = merged(groups.tree, key, added)
        extra = self._set_by_extras(groups, flat) if any(_is_extra(key) for key in line.choices) else set[str]()
        return {key: value for key, value in flat.items() if key not in extra}

    def _set_by_extras(self, groups: Groups, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` that an experiment on the command line sets itself: it wins over the user's file."""
        without = self._chooser.compose({key: value for key, value in groups.choices.items() if not _is_extra(key)})
        found = {key for key in keys if get(without.tree, key) != get(groups.tree, key)}
        axes = {axis for axis in AXES if {axis, f"parallel.{axis}"} & found}
        return found | axes | {f"parallel.{axis}" for axis in axes}

    def _sources(
        self, tree: Tree, groups: Groups, chosen: Mapping[str, str], user: Mapping[str, Any], line: Line
    ) -> list[ModelSource]:
        """Where the model, and the draft if there is one, come from."""

        def free(key: str) -> str | None:
            value = line.literal(key) if has(tree, key) else None
            return value if value is not None else user.get(key) or get(tree, key)

        def source(node: str, group: str, folder_key: str, *, named: bool) -> ModelSource:
            option = groups.choices.get(group, "")
            return ModelSource(node, group, folder_key, free(folder_key), free(f"{node}.config"), option, named)

        default = self._chooser.compose({}).choices if line.literal("checkpoint") else {}
        named = "model" in chosen or (bool(default) and groups.choices["model"] != default["model"])
        found = [source("model", "model", "checkpoint", named=named)]
        if groups.choices["spec"] == "draft_model":
            found.append(source("draft", DRAFT, "spec.checkpoint", named=DRAFT in chosen))
        return [source for source in found if source.node in tree]

    def _read_models(
        self, tree: Tree, sources: Iterable[ModelSource], user: Mapping[str, Any], line: Line
    ) -> list[ModelSource]:
        """Put the models that are read from files into the tree; returns the sources that can still be compared."""
        good: list[ModelSource] = []
        for source in sources:
            saved = source.option == models.CUSTOM and f"{source.node}.vocab_size" in user
            key, path = f"{source.node}.config", line.literal(f"{source.node}.config")
            if path is not None and source.option != models.CUSTOM:
                reason = f"{source.group}={source.option} reads no config.json"
                line.refuse([Problem(key, path, reason, f"add {source.group}={models.CUSTOM}")], source.node)
                continue
            try:
                if source.node not in line.unsure and (not saved or path is not None):
                    tree[source.node] = source.read(self._shipped) or tree[source.node]
                good.append(source)
            except ConfigError as error:
                line.refuse(error.problems, source.node)
        return good

    def _shipped(self) -> dict[str, ModelConfig]:
        found: dict[str, ModelConfig] = {}
        for option in self.groups.options("model"):
            if option != models.CUSTOM:
                model = models.model_of(self._chooser.compose({"model": option}).tree["model"])
                if model is not None:
                    found[option] = model
        return found

    def _apply(self, tree: Tree, values: Iterable[Value], groups: Groups, line: Line, where: str = "") -> set[str]:
        """Set values in order; returns the keys that were set. ``where`` stands before the key in a problem."""
        done: set[str] = set()
        for value in values:
            key, problem = value.key, None
            if has(tree, key) and ("." in key or key in top_level()):
                done.add(key)
                problem = put(tree, key, value.value, value.text)
            elif key.partition(".")[0] not in line.unsure:
                problem = unknown.explain(key, value.text, tree, groups.choices, self._nodes_of_tasks)
            if problem is not None:
                line.problems.append(Problem(where + problem.key, problem.value, problem.reason, problem.works))
        resolved.settle_axes(tree, done, line.problems.append)
        return done

    def _nodes_of_tasks(self) -> Tree:
        return {path.stem: primary.read_yaml(path) for path in sorted((self.conf / "task").glob("*.yaml"))}


def _is_extra(key: str) -> bool:
    """A group that the package does not have (``experiment``)."""
    return key not in GROUPS and key != DRAFT


def _flat(tree: Tree, values: Iterable[Value]) -> Iterator[Value]:
    """``parallel={pp:4}`` as ``parallel.pp=4``."""
    for given in values:
        for key, value in flatten(tree, given.key, given.value):
            yield given if key == given.key else Value(key, value, show(value))
