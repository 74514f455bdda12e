"""From the tree to the typed configuration: interpolations, shorthands, types, ``auto``, and then every check."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from builder.composition.hydra_groups import Tree, plain
from builder.composition.line import GROUPS
from builder.composition.overrides import LITERAL_KEYS
from builder.composition.tree import copy_tree, get, node_type, node_types, put, texts, top_level
from builder.composition.typed import WRONG, Report, field_reader, read_node, show
from builder.composition.unknown import choice
from builder.errors import Problem
from builder.paths import assets_dir
from builder.schema.config import COMPUTING_TASKS, BuildConfig, problems
from builder.schema.fields import MISSING, field_problems
from builder.schema.groups import AUTO, DEFAULT_MAX_MODEL_LEN
from builder.schema.parallel import AXES
from builder.schema.spec import DSparkSpecConfig

_NOT_SIZES = frozenset(
    {"hardware", "kernels", "generate", "verify", "convert", "search", "bench", "export", "plan", "report"}
    | {"output", "seed", "runtime.max_num_seqs", "runtime.memory_fraction", "runtime.reserve_bytes"}
)
"""Problems of these leave the tensors as they are."""

_ROOT_KEY = re.compile(r"\$\{(\w+)\}")


def resolve(tree: Tree, report: Report) -> Tree:
    """A copy without interpolations. Free text keeps its ``${``."""
    tree = copy_tree(tree)
    rest: list[tuple[str, str]] = []
    for key, text in texts(tree):
        if key in LITERAL_KEYS:
            continue
        match = _ROOT_KEY.fullmatch(text)
        value = tree.get(match[1]) if match else None
        if (
            match is None
            or value is None
            or isinstance(value, dict | list)
            or (isinstance(value, str) and "${" in value)
        ):
            rest.append((key, text))
        else:
            put(tree, key, value, text)
    return _resolve_rest(tree, rest, report) if rest else tree


def _resolve_rest(tree: Tree, rest: list[tuple[str, str]], report: Report) -> Tree:
    free = {key: get(tree, key) for key in LITERAL_KEYS if isinstance(get(tree, key), str)}
    for key in free:
        put(tree, key, None, "")
    for key, text in rest:
        try:
            config = OmegaConf.create(tree)
            put(tree, key, _plain_value(OmegaConf.select(config, key, throw_on_missing=True)), text)
        except (OmegaConfBaseException, ValueError) as error:
            report(Problem(key, text, f"cannot be resolved ({plain(error).rstrip('.')})"))
            put(tree, key, None, text)
    for key, text in free.items():
        put(tree, key, text, text)
    return tree


def _plain_value(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def settle_axes(tree: Tree, given: Collection[str], report: Report) -> None:
    """``pp`` and ``parallel.pp`` are one setting; ``given`` are the keys that were typed at this level."""
    parallel = cast("Tree", tree["parallel"])
    for axis in AXES:
        long = f"parallel.{axis}"
        if axis in given and long in given and parallel[axis] not in (tree[axis], f"${{{axis}}}"):
            reason = f"{long}={show(parallel[axis])} says otherwise, and both mean the same"
            report(Problem(axis, show(tree[axis]), reason, "give only one of them"))
        elif axis in given:
            parallel[axis] = tree[axis]
        elif long in given:
            tree[axis] = parallel[axis]


def read_parts(tree: Tree, choices: Mapping[str, str], report: Report) -> Tree:
    """The fields of the root, typed, by name; one that is WRONG was reported. ``choices`` name the files."""
    parts: Tree = {}
    for name, value in tree.items():
        if name in AXES:
            continue
        kind = node_type(name, value)
        if name not in top_level():
            files = ", ".join(f"{group}={option}" for group, option in choices.items() if group not in GROUPS)
            report(Problem(name, show(value), f"there is no such key; it was set by {files}", "take it out there"))
            parts[name] = WRONG
        elif kind is None:
            parts[name] = field_reader(BuildConfig, name)(value, name, report)
            if value == MISSING and name not in LITERAL_KEYS:
                report(Problem(name, None, "has no value", f"give {name}=…"))
                parts[name] = WRONG
        else:
            parts[name] = None if value is None else read_node(kind, value, name, report, choice(name, choices))
    return parts


def partial_problems(parts: Tree, skip: Collection[str]) -> Iterator[Problem]:
    """What can be said of the nodes that were read while others are wrong."""
    for name, node in parts.items():
        if name in node_types() and name not in skip and node is not None and node is not WRONG:
            yield from (problem for problem in field_problems(node, name) if problem.value not in (None, AUTO))


def resolve_autos(config: BuildConfig) -> None:
    """Replace every ``auto``; nothing after this meets one."""
    runtime = config.runtime
    shipped = assets_dir() / config.model.name
    if config.checkpoint is None and config.task in COMPUTING_TASKS and (shipped / "config.json").is_file():
        config.checkpoint = str(shipped)
    if runtime.dtype == AUTO:
        exact = config.hardware.vendor == "cpu" or config.task == "verify"
        runtime.dtype = "float32" if exact else "bfloat16"
    if runtime.max_model_len == AUTO and isinstance(cast("object", config.model.max_position_embeddings), int):
        runtime.max_model_len = min(DEFAULT_MAX_MODEL_LEN, config.model.max_position_embeddings)
    if isinstance(config.spec, DSparkSpecConfig) and config.spec.num_speculative_tokens is None:
        config.spec.num_speculative_tokens = config.model.dspark_block_size


def _leaves_sizes_alone(key: str) -> bool:
    return key in _NOT_SIZES or key.partition(".")[0] in _NOT_SIZES


def check(config: BuildConfig) -> list[Problem]:
    """Every problem of a typed configuration; what the tensors say only where the sizes are legal."""
    found = list(problems(config))
    own = config.spec.own_checkpoint
    if own is not None and not Path(own).is_dir():
        found.append(
            Problem("spec.checkpoint", own, "there is no such folder", "give the folder of the drafter's files")
        )
    if all(_leaves_sizes_alone(problem.key) for problem in found):
        from builder.assembly import stages

        found += stages.problems(config)
    return found
