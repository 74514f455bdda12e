"""Where the package finds its data: ``conf/`` and the files that ship with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """The folder of the configuration groups: inside the package when installed, beside it in a checkout."""
    candidates = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
    for folder in candidates:
        if (folder / "config.yaml").is_file():
            return folder
    raise RuntimeError(f"the conf/ folder is missing: looked in {candidates[0]} and {candidates[1]}; reinstall builder")


_user_folders: list[Path] = []


def set_user_folders(folders: Iterable[str | Path]) -> None:
    """The folders of ``--config-dir`` and the like, for what reads options beside the composed ones (a search)."""
    _user_folders[:] = [Path(folder).absolute() for folder in folders]


def option_files(group: str) -> dict[str, Path]:
    """Every option of a group with its file: the package's own, then those that the user's folders add."""
    found: dict[str, Path] = {}
    for folder in (conf_dir(), *_user_folders):
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def assets_dir() -> Path:
    """The folder of the files that ship with the package (the tiny checkpoint)."""
    return _PACKAGE / "assets"
