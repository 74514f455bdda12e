"""Files in ``out=DIR``: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from builder.errors import ConfigError, Problem


def prepare(folder: str) -> Path:
    """Make the folder. Raises ConfigError where that, or writing in it, cannot be done."""
    path = Path(folder)
    works = "give a folder that can be written"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except (FileExistsError, NotADirectoryError):
        raise ConfigError([Problem("out", folder, "is a file, or lies below one", works)]) from None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([Problem("out", folder, f"cannot be written ({words})", works)]) from None


def write(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
