"""Devices and speculative methods that a search may try, read from the files of ``conf/`` and of the user's folders."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml

from builder.errors import ConfigError, Problem
from builder.paths import option_files
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
    for option in option_files("hardware"):
        for name, other in _option(option).items():
            known.setdefault(name, other)
    return {name: one for name, one in known.items() if one.total_bytes is not None}


def _option(name: str) -> dict[str, HardwareConfig]:
    """The devices of a hardware option, each chosen. Raises ConfigError for a file that is no such option."""
    path = option_files("hardware")[name]
    values: dict[str, Any] = _read(path)
    try:
        devices = {device: DeviceConfig(**facts) for device, facts in values["devices"].items()}
        values["devices"] = devices
        return {device: HardwareConfig(**(values | {"device": device})) for device in devices}
    except (AttributeError, KeyError, TypeError):
        works = "give it vendor, device, memory_bytes, offload and devices, as conf/hardware/nvidia.yaml has them"
        raise ConfigError([Problem(f"hardware={name}", None, f"{path} has no devices to search", works)]) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise ConfigError([Problem("configuration", str(path), "is no YAML with keys", "mend the file")])
    return {str(key): value for key, value in cast("dict[Any, Any]", values).items() if key != "defaults"}


def hardware_option(hardware: HardwareConfig) -> str:
    """The option that has a device: its vendor's, or a file of the user's."""
    files = option_files("hardware")
    own = [hardware.vendor] if hardware.vendor in files else []
    return next((name for name in [*own, *files] if hardware.device in _option(name)), hardware.vendor)


def spec_overrides(spec: SpecConfig) -> list[str]:
    """The overrides that make a speculative method again: where its keys are not those of its own file."""
    values, words = _read(option_files("spec")[spec.method]), [f"spec={spec.method}"]
    words += [f"spec.num_speculative_tokens={spec.drafts}"] if spec.drafts else []
    for name in ("stash", "min_ngram", "max_ngram"):
        value = getattr(spec, name, None)
        if value != values.get(name):
            words.append(f"spec.{name}={str(value).lower()}")
    return words


def specs_of(config: BuildConfig, search: SearchConfig, found: list[Problem]) -> tuple[SpecConfig, ...]:
    """Every method with every number of drafts; problems go to ``found``."""
    names = [config.spec.method] if search.spec is None else search.spec
    if not names:
        found.append(Problem("search.spec", "[]", "is empty", "give methods, or leave it out"))
    methods = _possible(config.model, config.spec.method) if ALL in names else list(dict.fromkeys(names))
    specs: list[SpecConfig] = []
    for method in methods:
        if method not in option_files("spec"):
            known = [*SPEC_CONFIGS, *(option_files("spec").keys() - SPEC_CONFIGS.keys()), ALL]
            found.append(Problem("search.spec", method, "is not known", one_of(known, method)))
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
    path = option_files("spec")[method]
    values = _read(path)
    try:
        spec = SPEC_CONFIGS[values["method"]](**values)
    except (KeyError, TypeError):
        works = "give it method and the keys of that method"
        raise ConfigError([Problem(f"spec={method}", None, f"{path} is no speculative method", works)]) from None
    if isinstance(spec, DSparkSpecConfig) and spec.num_speculative_tokens is None:
        # A release without DSpark stages is refused as such, whatever the number.
        spec.num_speculative_tokens = config.model.dspark_block_size or 1
    return spec


def _with_drafts(spec: SpecConfig, counts: list[int] | None) -> list[SpecConfig]:
    if counts is None or not isinstance(spec, DraftingSpecConfig | DSparkSpecConfig):
        return [spec]
    return [cast("SpecConfig", dataclasses.replace(spec, num_speculative_tokens=k)) for k in dict.fromkeys(counts)]
