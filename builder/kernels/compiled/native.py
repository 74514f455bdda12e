"""The C++ operations: compiled on first use, kept in a cache folder, loaded into torch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths, library_paths

from builder.errors import ConfigError, Problem

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")


def usable(x: Tensor) -> bool:
    """Whether these operations compute ``x``: it is on the processor, and nobody wants its gradient."""
    return x.is_cpu and not torch.is_grad_enabled()


@cache
def operations() -> Any:
    """The operations, by name. Raises ConfigError where they cannot be compiled."""
    compiler = _compiler()
    target = cache_folder() / f"kernels-{_key(compiler)}.so"
    if not target.is_file():
        _compile(compiler, target)
    try:
        cast("Any", torch.ops).load_library(str(target))
    except OSError as error:
        _refuse(f"cannot be loaded from {target}: {error.__cause__ or error}")
    return torch.ops.builder_kernels


def cache_folder() -> Path:
    """Where compiled operations are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "builder"


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    found = next((path for path in map(shutil.which, names) if path), None)
    return found or _refuse(f"needs a C++ compiler, and there is no {' or '.join(names)}")


def _key(compiler: str) -> str:
    # What the compiler makes of "native" is part of the key: a home folder may be shared between machines.
    told = subprocess.run([compiler, *FLAGS, "-E", "-v", "-x", "c++", os.devnull], capture_output=True, check=False)
    parts = (SOURCE.read_bytes(), torch.__version__.encode(), told.stderr)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    includes = [argument for path in include_paths() for argument in ("-isystem", path)]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        libraries = [f"-L{path}" for path in library_paths()] + ["-lc10", "-ltorch_cpu"]
        command = [compiler, *FLAGS, *includes, str(SOURCE), *libraries, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            _refuse(f"does not compile here: {(errors or ['no message'])[0]}")
        made.replace(target)


def _refuse(reason: str) -> NoReturn:
    raise ConfigError([Problem("kernels", "compiled", reason, "install g++ 11 or later, or use kernels=reference")])
