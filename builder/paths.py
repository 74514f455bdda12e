"""Where the package finds its data: ``conf/`` and the files that ship with it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The folder of the configuration groups: inside the package when installed, beside it in a checkout."""
    candidates = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
    for folder in candidates:
        if (folder / "config.yaml").is_file():
            return folder
    raise RuntimeError(f"the conf/ folder is missing: looked in {candidates[0]} and {candidates[1]}; reinstall builder")


def assets_dir() -> Path:
    """The folder of the files that ship with the package (the tiny checkpoint)."""
    return _PACKAGE / "assets"
