"""From a command line to one typed, checked configuration. Hydra is known here and in ``builder.cli`` only."""

from __future__ import annotations

from collections.abc import Iterable

from builder.composition.composer import Composer
from builder.composition.result import Composition
from builder.paths import conf_dir
from builder.schema.config import BuildConfig

__all__ = ["Composer", "Composition", "compose", "shared_composer"]

_latest: list[tuple[float, Composer]] = []


def compose(overrides: Iterable[str] = ()) -> BuildConfig:
    """A configuration from overrides as the command line has them (``["model=v4_flash", "pp=2"]``).

    Leaves a host application's Hydra alone.

    Raises:
        ConfigError: everything that is wrong, at once.
    """
    if isinstance(overrides, str):
        raise TypeError(f"overrides must be a list of texts, not the text {overrides!r}")
    return shared_composer().compose(overrides).config()


def shared_composer() -> Composer:
    """The composer of this process for the package's own ``conf/``, made anew where a file there has changed."""
    stamp = max(path.stat().st_mtime for path in (conf_dir(), *conf_dir().rglob("*")))
    if not _latest or _latest[0][0] != stamp:
        _latest[:] = [(stamp, Composer())]
    return _latest[0][1]
