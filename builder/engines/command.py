"""A serve command of another engine, and what both directions of the bridge know of names."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from builder.schema.config import BuildConfig
from builder.schema.model import ModelConfig

ENGINES = {"vllm": "vLLM 0.33.0", "sglang": "SGLang 0.5.23"}
"""Every engine the bridge knows, with the version whose words it speaks."""

REPOSITORIES = {
    "v4_pro": "deepseek-ai/DeepSeek-V4-Pro",
    "v4_flash": "deepseek-ai/DeepSeek-V4-Flash",
    "v4_pro_base": "deepseek-ai/DeepSeek-V4-Pro-Base",
    "v4_flash_base": "deepseek-ai/DeepSeek-V4-Flash-Base",
    "v4_pro_0813": "deepseek-ai/DeepSeek-V4-Pro-0813",
    "v4_flash_0731": "deepseek-ai/DeepSeek-V4-Flash-0731",
}
"""The hub's name of every release."""

EXPERTS = {name: 384 if name.startswith("v4_pro") else 256 for name in REPOSITORIES}
"""Routed experts of a layer of every release."""

ENTRY_BLOCK = 256
"""Tokens of a cache block in the published recipes: one that every compression ratio divides."""


@dataclass(slots=True)
class Command:
    """A command under construction: the program's words, then settings in order (None: a switch), then environment.

    warnings: what the engine does otherwise than the configuration says; notes: what is worth knowing.
    """

    engine: str
    program: list[str]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def put(self, flag: str, value: object = None) -> None:
        """Add ``--flag value``, or the bare switch."""
        self.settings[flag] = value

    @property
    def argv(self) -> list[str]:
        """The command as a list of words."""
        words = list(self.program)
        for flag, value in self.settings.items():
            words.append(f"--{flag}")
            if value is not None:
                words.append(json.dumps(value) if isinstance(value, dict) else str(value))
        return words

    @property
    def text(self) -> str:
        """The command as a shell takes it, environment first, one setting a line."""
        lines = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines.append(shlex.join(self.program))
        for flag, value in self.settings.items():
            shown = "" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
            lines.append(f"  --{flag} {shlex.quote(shown)}" if shown else f"  --{flag}")
        return " \\\n".join(lines)


def model_word(config: BuildConfig) -> str | None:
    """What stands for the model in a command: the checkpoint's folder, or the hub's name; None if there is none."""
    return config.checkpoint or REPOSITORIES.get(config.model.name)


def given_bytes(config: BuildConfig, *names: str) -> tuple[str, int]:
    """Those of runtime's byte settings that are set, as words, and their sum."""
    values = {name: getattr(config.runtime, name) for name in names}
    return ", ".join(f"runtime.{name}={size}" for name, size in values.items() if size), sum(values.values())


def architecture(config: BuildConfig) -> str:
    """``sm_90``, ``gfx950`` …; empty for a custom device."""
    device = config.hardware.devices.get(config.hardware.device)
    return device.arch if device else ""


def packed_fp4(model: ModelConfig) -> bool:
    """The release stores its experts in FP4."""
    quantization = model.quantization_config
    return quantization is not None and quantization.expert_dtype == "fp4"
