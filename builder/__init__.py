"""builder turns a configuration into a DeepSeek-V4: exactly the parts a rank needs, with their cost known first."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.assembly.build import build
    from builder.checkpoint.reading import load
    from builder.composition import compose
    from builder.errors import CheckpointError, ConfigError
    from builder.planning.document import plan
    from builder.runtime.capture import capture
    from builder.runtime.tasks import generate

__version__ = "0.1.0"

__all__ = ["CheckpointError", "ConfigError", "__version__", "build", "capture", "compose", "generate", "load", "plan"]

_HOMES = {
    "CheckpointError": "builder.errors",
    "ConfigError": "builder.errors",
    "build": "builder.assembly.build",
    "capture": "builder.runtime.capture",
    "compose": "builder.composition",
    "generate": "builder.runtime.tasks",
    "load": "builder.checkpoint.reading",
    "plan": "builder.planning.document",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import builder`` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
