"""The drafter of a speculative method: ``drafter`` in the module of the method's name in this folder."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from builder.errors import ConfigError, Problem
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Drafter
from builder.runtime.model import Model
from builder.schema.config import BuildConfig


def check_can_draft(config: BuildConfig) -> None:
    """Raise ConfigError for a method that can be planned and loaded, but not run."""
    if find_spec(_module(config)) is None:
        reason = "its forward pass is not public in enough detail to be computed; it can be planned, built and loaded"
        raise ConfigError([Problem("spec", config.spec.method, reason, "use spec=none or spec=ngram")])


def drafter_of(model: Model, cache: Cache) -> Drafter:
    """The drafter that the configuration names."""
    return import_module(_module(model.config)).drafter(model, cache)


def _module(config: BuildConfig) -> str:
    return f"{__package__}.{config.spec.method}"
