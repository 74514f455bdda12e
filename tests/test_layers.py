"""Imports go downward only, and what plans must not need torch: read from the source, nothing is imported here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "builder"

# Low to high. A module may import its own package and every layer below, never a neighbour on its own layer.
# "" is builder/__init__.py itself.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "paths", "outcome"),
    ("schema",),
    ("kernels",),
    ("components",),
    ("assembly", "checkpoint"),
    ("composition", "engines", "planning", "runtime"),
    ("cli", "__main__", ""),
)

# Pairs of neighbours where the left one may import the right one all the same, each with its reason.
NEIGHBOURS: tuple[tuple[str, str], ...] = (
    ("engines*", "planning*"),  # a log is compared with a plan
)

# Tighter than the layers: what the modules on the left may import of builder besides themselves.
ONLY = {
    "schema*": ("errors",),
    "assembly.stages": ("errors", "schema*", "components", "components.*.spec", "assembly*"),
    "assembly.partition": ("errors", "schema*", "components", "components.*.spec", "assembly*"),
    "assembly.sharding": ("errors", "schema*", "components", "components.*.spec", "assembly*"),
    "components.*.spec": ("errors", "schema*", "components", "components.*.spec"),
    "planning*": ("errors", "paths", "outcome", "schema*", "components", "components.*.spec", "assembly*"),
    "engines*": ("errors", "outcome", "schema*", "assembly*", "planning*"),
}

# Libraries that only some modules may import, wherever in the file the import stands.
LIBRARIES = {
    "hydra": ("composition*", "cli*"),
    "omegaconf": ("composition*", "cli*"),
}

# Modules that must do without the heavy libraries, themselves and through all that they import when they are loaded.
HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "triton", "safetensors.torch")
LIGHT = (
    "",
    "__main__",
    "cli*",
    "composition*",
    "errors",
    "paths",
    "outcome",
    "schema*",
    "engines*",
    "planning*",
    "components.*.spec",
    "assembly.stages",
    "assembly.partition",
    "assembly.sharding",
)


@dataclass(frozen=True)
class Import:
    """One import: what, on which line, and whether it runs when the module is loaded."""

    target: str
    line: int
    on_load: bool


@dataclass
class Tree:
    """The modules of a package by dotted name without the package's own ("" is its __init__), with their imports."""

    folder: Path
    files: dict[str, Path]
    imports: dict[str, list[Import]] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return self.folder.name

    @classmethod
    def read(cls, folder: Path) -> Tree:
        files: dict[str, Path] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        tree = cls(folder, files)
        for name, path in files.items():
            tree.imports[name] = sorted(set(tree._imports(name, path)), key=lambda found: (found.line, found.target))
        return tree

    def _imports(self, name: str, path: Path) -> Iterator[Import]:
        for node, on_load in _walk(ast.parse(path.read_text(encoding="utf-8"), str(path)), on_load=True):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, on_load)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(name, path, node)
                for alias in node.names:
                    if (base, alias.name) == (self.package, "__version__"):
                        continue  # the one plain value that builder/__init__.py holds: free to all
                    submodule = f"{base}.{alias.name}"
                    yield Import(submodule if self.own(submodule) in self.files else base, node.lineno, on_load)

    def _absolute(self, name: str, path: Path, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = [self.package, *name.split(".")] if name else [self.package]
        up = node.level - (path.stem == "__init__")
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])

    def own(self, target: str) -> str | None:
        """The name inside this package of an absolute one, or None for a library."""
        if target == self.package:
            return ""
        return target.removeprefix(self.package + ".") if target.startswith(self.package + ".") else None

    def loaded_with(self, name: str) -> list[str]:
        """The module and the __init__ files that Python runs on the way to it."""
        parts = name.split(".") if name else []
        return [package for n in range(len(parts)) if (package := ".".join(parts[:n])) in self.files] + [name]

    def where(self, name: str, found: Import) -> str:
        return f"{self.package}/{self.files[name].relative_to(self.folder).as_posix()}:{found.line}"


def _walk(node: ast.AST, *, on_load: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import statement, and whether it runs on loading: not in a function, not under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, on_load
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, on_load=False)
        elif isinstance(child, ast.If) and ast.unparse(child.test).rpartition(".")[2] == "TYPE_CHECKING":
            yield from _walk(ast.Module(child.body, []), on_load=False)
            yield from _walk(ast.Module(child.orelse, []), on_load=on_load)
        else:
            yield from _walk(child, on_load=on_load)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """``schema*`` is the package with all in it, ``components.*.spec`` one file in every folder."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def head(name: str) -> str:
    return name.partition(".")[0]


def layer(name: str) -> int | None:
    """Where the module stands; ``composition_x`` stands with ``composition``."""
    for number, names in enumerate(LAYERS):
        if head(name) in names or any(n and head(name).startswith(n + "_") for n in names):
            return number
    return None


def direction_faults(tree: Tree) -> Iterator[str]:
    """Imports that go up or sideways, leave what ``ONLY`` allows, or take a library from those it belongs to."""
    for name, imports in tree.imports.items():
        own_layer = layer(name)
        if own_layer is None:
            yield f"{tree.package}.{name}: stands on no layer; add it to LAYERS in tests/test_layers.py"
            continue
        for found in imports:
            target = tree.own(found.target)
            at = f"{tree.where(name, found)}: imports {found.target}"
            if target is None:
                for library, owners in LIBRARIES.items():
                    if head(found.target) == library and not matches(name, owners):
                        yield f"{at}, which belongs to {', '.join(owners)}"
                continue
            target_layer = layer(target)
            if target_layer is None or target_layer > own_layer:
                yield f"{at}, which stands above {tree.package}.{name}; imports go downward only"
            elif target_layer == own_layer and not _may_meet(name, target):
                yield f"{at}, a neighbour on the same layer; move what both need to a lower one"
            for pattern, allowed in ONLY.items():
                if matches(name, (pattern,)) and not matches(target, (pattern, *allowed)):
                    yield f"{at}; {pattern} may import only {', '.join(allowed)} of {tree.package}"


def _may_meet(name: str, target: str) -> bool:
    """One package, the two ends of the stack (single files that belong together), or a pair of ``NEIGHBOURS``."""
    if head(name) == head(target) or layer(name) in (0, len(LAYERS) - 1):
        return True
    return any(matches(name, (left,)) and matches(target, (right,)) for left, right in NEIGHBOURS)


def weight_faults(tree: Tree) -> Iterator[str]:
    """Light modules that load a heavy library, with the way from one to the other."""
    for name in tree.files:
        if not matches(name, LIGHT):
            continue
        way = dict.fromkeys(tree.loaded_with(name), "")
        queue = list(way)
        while queue:
            module = queue.pop(0)
            for found in tree.imports[module]:
                if not found.on_load:
                    continue
                step = f"{way[module]}\n    {tree.where(module, found)}: imports {found.target}"
                target = tree.own(found.target)
                if target is None:
                    if any(found.target == heavy or found.target.startswith(heavy + ".") for heavy in HEAVY):
                        yield f"{tree.package}.{name} must not load {found.target}, but does:{step}"
                    continue
                for loaded in tree.loaded_with(target):
                    if loaded in tree.files and loaded not in way:
                        way[loaded] = step
                        queue.append(loaded)


@pytest.fixture(scope="module")
def package() -> Tree:
    return Tree.read(PACKAGE)


def test_imports_go_downward(package: Tree) -> None:
    faults = list(direction_faults(package))
    assert not faults, "\n" + "\n".join(faults)


def test_planning_needs_no_torch(package: Tree) -> None:
    faults = list(weight_faults(package))
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("pattern", LIGHT)
def test_the_table_names_what_exists(package: Tree, pattern: str) -> None:
    assert any(matches(name, (pattern,)) for name in package.files), (
        f"LIGHT names {pattern!r}, and no module is called so"
    )


GOOD = {
    "__init__": "def build():\n    import torch\n    from builder.runtime import step",
    "__main__": "from builder.cli import main",
    "cli": "import hydra\nfrom builder import composition",
    "composition": "import omegaconf\nfrom builder.assembly.stages import stages\nfrom builder.schema import model",
    "errors": "",
    "schema.__init__": "",
    "schema.model": "from builder.errors import Problem\nfrom .fields import setting",
    "schema.fields": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    "kernels.reference": "import torch",
    "components.__init__": "",
    "components.norm.__init__": "",
    "components.norm.spec": "from builder.schema.model import ModelConfig",
    "components.norm.module": "import torch\nfrom builder.kernels import reference\nfrom . import spec",
    "assembly.stages": "from builder.components.norm.spec import SPEC",
    "checkpoint.reader": "import torch\nfrom builder.components.norm.module import Norm",
    "planning.sweep": "from builder import __version__\nfrom builder.assembly import stages",
    "planning.report": "def table():\n    import rich\n    from builder.components.norm.spec import SPEC",
    "runtime.step": "import torch\nfrom builder.checkpoint.reader import read",
}


def _fake(folder: Path, module: str = "errors", text: str = "") -> Tree:
    for name, source in {**GOOD, module: text}.items():
        path = folder.joinpath("builder", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return Tree.read(folder / "builder")


def test_the_checker_accepts_a_good_tree(tmp_path: Path) -> None:
    tree = _fake(tmp_path)
    assert list(direction_faults(tree)) == []
    assert list(weight_faults(tree)) == []


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        (
            "errors",
            "import builder.schema.model",
            "builder/errors.py:1: imports builder.schema.model, which stands above",
        ),
        ("schema.model", "from builder import cli", "schema/model.py:1: imports builder.cli, which stands above"),
        ("schema.model", "from builder import build", "schema/model.py:1: imports builder, which stands above"),
        ("schema.model", "from builder.paths import conf_dir", "schema* may import only errors"),
        (
            "schema.model",
            "\nfrom ..planning import report",
            "model.py:2: imports builder.planning.report, which stands",
        ),
        ("kernels.reference", "def f():\n    from builder.components.norm import module", "reference.py:2: imports"),
        (
            "components.norm.spec",
            "from builder.components.norm.module import Norm",
            "components.*.spec may import only",
        ),
        ("assembly.stages", "from builder.checkpoint import reader", "a neighbour on the same layer"),
        ("planning.report", "from builder.composition import compose", "a neighbour on the same layer"),
        ("planning.report", "def f():\n    import omegaconf.errors", "which belongs to composition*, cli*"),
        (
            "planning.report",
            "def f():\n    from builder.components.norm import module",
            "planning* may import only errors",
        ),
        ("runtime.step", "from hydra import compose", "which belongs to composition*, cli*"),
        ("extras.more", "", "builder.extras.more: stands on no layer"),
    ],
)
def test_the_checker_sees_a_wrong_direction(tmp_path: Path, module: str, text: str, fault: str) -> None:
    faults = list(direction_faults(_fake(tmp_path, module, text)))
    assert any(fault in line for line in faults), faults


@pytest.mark.parametrize(
    ("module", "text", "faults"),
    [
        (
            "schema.model",
            "import torch",
            ["builder.schema.model", "builder.components.norm.spec", "builder.planning.sweep"],
        ),
        (
            "schema.model",
            "try:\n    from torch.nn import Module\nexcept ImportError:\n    pass",
            ["builder.schema.model"],
        ),
        (
            "components.norm.__init__",
            "from .module import Norm",
            ["builder.components.norm.spec", "builder.assembly.stages"],
        ),
        ("planning.report", "import builder.components.norm.module", ["builder.planning.report"]),
        ("planning.report", "from safetensors.torch import load_file", ["builder.planning.report"]),
        (
            "__init__",
            "from builder.runtime.step import run",
            ["builder.errors", "builder.cli", "builder.planning.report"],
        ),
    ],
)
def test_the_checker_sees_torch(tmp_path: Path, module: str, text: str, faults: list[str]) -> None:
    found = list(weight_faults(_fake(tmp_path, module, text)))
    for name in faults:
        assert any(line.startswith(f"{name} must not load ") for line in found), (name, found)
