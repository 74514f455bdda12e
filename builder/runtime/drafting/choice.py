"""The drafter of a speculative method. A new one is registered here."""

from __future__ import annotations

from collections.abc import Callable

from builder.errors import ConfigError, Problem
from builder.runtime.cache import Cache
from builder.runtime.drafting.base import Drafter, NoDrafter
from builder.runtime.drafting.draft_model import DraftModelDrafting
from builder.runtime.drafting.mtp import MTPDrafting
from builder.runtime.drafting.ngram import NgramDrafter
from builder.runtime.model import Model
from builder.schema.config import BuildConfig
from builder.schema.spec import NgramSpecConfig


def _ngram(model: Model, cache: Cache) -> Drafter:
    del cache
    spec = model.config.spec
    assert isinstance(spec, NgramSpecConfig), "spec=ngram has its own keys"
    return NgramDrafter(spec.min_ngram, spec.max_ngram)


def _none(model: Model, cache: Cache) -> Drafter:
    del model, cache
    return NoDrafter()


DRAFTERS: dict[str, Callable[[Model, Cache], Drafter]] = {
    "none": _none,
    "ngram": _ngram,
    "mtp": MTPDrafting,
    "eagle": MTPDrafting,
    "draft_model": DraftModelDrafting,
}


def check_can_draft(config: BuildConfig) -> None:
    """Raise ConfigError for a method that can be planned and loaded, but not run."""
    if config.spec.method not in DRAFTERS:
        reason = "its forward pass is not public in enough detail to be computed; it can be planned, built and loaded"
        raise ConfigError([Problem("spec", config.spec.method, reason, "use spec=none or spec=ngram")])


def drafter_of(model: Model, cache: Cache) -> Drafter:
    """The drafter that the configuration names."""
    return DRAFTERS[model.config.spec.method](model, cache)
