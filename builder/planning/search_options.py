"""Devices and speculative methods that a search may try, read from the files of ``conf/``."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, cast

import yaml

from builder.errors import Problem
from builder.paths import conf_dir
from builder.schema.config import BuildConfig
from builder.schema.fields import one_of
from builder.schema.groups import SearchConfig
from builder.schema.hardware import DeviceConfig, HardwareConfig
from builder.schema.model import ModelConfig
from builder.schema.spec import SPEC_CONFIGS, DraftingSpecConfig, DSparkSpecConfig, SpecConfig

ALL = "all"


def devices_of(config: BuildConfig, names: list[str] | None, found: list[Problem]) -> tuple[HardwareConfig, ...]:
    """The devices by name: the chosen vendor's first, then every other vendor's; problems go to ``found``."""
    hardware = config.hardware
    if names is None and hardware.total_bytes is None:
        works = "name another hardware=, or give search.devices=[h200] or hardware.memory_bytes=N"
        found.append(Problem("hardware", hardware.vendor, "has no device memory that a deployment could fit in", works))
        return ()
    if names is None:
        return (hardware,)
    if not names:
        found.append(Problem("search.devices", "[]", "is empty", "give names, or leave it out"))
    known = _known_devices(hardware)
    names = [name for name, one in known.items() if one.vendor == hardware.vendor] if ALL in names else names
    unknown = [name for name in names if name not in known]
    reason = "no vendor has such a device"
    found += [Problem("search.devices", name, reason, one_of([*known, ALL], name)) for name in unknown]
    return tuple(known[name] for name in dict.fromkeys(names) if name in known)


def _known_devices(hardware: HardwareConfig) -> dict[str, HardwareConfig]:
    # hardware.memory_bytes is of the configured device alone.
    known = {name: replace(hardware, device=name, memory_bytes=None) for name in hardware.devices}
    if hardware.total_bytes is not None:
        known[hardware.device] = hardware
    for path in sorted((conf_dir() / "hardware").glob("*.yaml")):
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        values.pop("defaults", None)
        if values["vendor"] == hardware.vendor:
            continue
        values["devices"] = {name: DeviceConfig(**facts) for name, facts in values["devices"].items()}
        others = {name: HardwareConfig(**(values | {"device": name})) for name in values["devices"]}
        known |= {name: other for name, other in others.items() if name not in known}
    return {name: one for name, one in known.items() if one.total_bytes is not None}


def specs_of(config: BuildConfig, search: SearchConfig, found: list[Problem]) -> tuple[SpecConfig, ...]:
    """Every method with every number of drafts; problems go to ``found``."""
    names = [config.spec.method] if search.spec is None else search.spec
    if not names:
        found.append(Problem("search.spec", "[]", "is empty", "give methods, or leave it out"))
    methods = _possible(config.model, config.spec.method) if ALL in names else list(dict.fromkeys(names))
    specs: list[SpecConfig] = []
    for method in methods:
        if method not in SPEC_CONFIGS:
            found.append(Problem("search.spec", method, "is not known", one_of([*SPEC_CONFIGS, ALL], method)))
        elif method == "draft_model" and config.spec.method != method:
            works = "add spec=draft_model model@draft=OPTION, or leave it out"
            found.append(Problem("search.spec", method, "needs a draft, and the configuration has none", works))
        else:
            specs += _with_drafts(_default(config, method), search.num_speculative_tokens)
    if search.num_speculative_tokens and specs and not any(spec.drafts for spec in specs):
        words = f"search.spec={methods} drafts nothing".replace("'", "")
        works = "add a method that drafts, such as search.spec=[none,mtp]"
        found.append(Problem("search.num_speculative_tokens", search.num_speculative_tokens, words, works))
    return tuple(specs)


def _possible(model: ModelConfig, chosen: str) -> list[str]:
    own = ["dspark"] if model.is_dspark else ["mtp"] if model.has_mtp else []
    return list(dict.fromkeys(["none", "ngram", *own, chosen]))


def _default(config: BuildConfig, method: str) -> SpecConfig:
    if method == config.spec.method:
        return config.spec
    values: dict[str, Any] = yaml.safe_load((conf_dir() / "spec" / f"{method}.yaml").read_text(encoding="utf-8"))
    values.pop("defaults", None)
    spec = SPEC_CONFIGS[method](**values)
    if isinstance(spec, DSparkSpecConfig) and spec.num_speculative_tokens is None:
        # A release without DSpark stages is refused as such, whatever the number.
        spec.num_speculative_tokens = config.model.dspark_block_size or 1
    return spec


def _with_drafts(spec: SpecConfig, counts: list[int] | None) -> list[SpecConfig]:
    if counts is None or not isinstance(spec, DraftingSpecConfig | DSparkSpecConfig):
        return [spec]
    return [cast("SpecConfig", dataclasses.replace(spec, num_speculative_tokens=k)) for k in dict.fromkeys(counts)]
