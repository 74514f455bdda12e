"""A configuration as a serve command, read again: every axis comes back."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import compose
from builder.assembly.stages import assemble
from builder.engines.exporting import export
from builder.engines.importing import import_command
from builder.errors import ConfigError
from builder.schema.config import BuildConfig

AXES = ("tp=8", "tp=8 ep=8", "dp=8 ep=8", "tp=2 dp=4 ep=8", "pp=4 tp=2 ep=2", "pp=2 tp=2 dp=2 ep=4", "tp=1")
SGLANG_AXES = (*AXES, "dp=2 tp=4", "dp=2 tp=4 ep=4", "tp=8 parallel.shared_expert=replicated", "tp=4 ep=2")
SPECS = {
    "v4_pro": ("none", "mtp", "ngram", "eagle"),
    "v4_flash": ("none", "mtp", "ngram", "draft_model"),
    "v4_flash_0731": ("none", "ngram", "dspark"),
    "v4_pro_base": ("none", "mtp"),
}
HARDWARE = ("nvidia", "nvidia hardware.device=h200", "nvidia hardware.device=rtx_pro_6000", "amd", "xpu")


def facts(config: BuildConfig) -> dict[str, Any]:
    """What a command can say of a configuration."""
    parallel, spec = config.parallel, config.spec
    return {
        "model": config.model.name,
        **{axis: getattr(parallel, axis) for axis in ("pp", "tp", "ep", "dp", "shared_expert")},
        "partition": assemble(config).partition,
        "spec": (spec.method, spec.drafts, getattr(spec, "max_ngram", None), getattr(spec, "min_ngram", None)),
        "draft": config.draft and config.draft.name,
        "cache": config.cache.layout,
        "runtime": config.runtime,
    }


@st.composite
def lines(draw: st.DrawFn, axes: tuple[str, ...]) -> list[str]:
    model = draw(st.sampled_from(sorted(SPECS)))
    method = draw(st.sampled_from(SPECS[model]))
    line = [f"model={model}", f"spec={method}", f"hardware={draw(st.sampled_from(HARDWARE))}"]
    line.append(draw(st.sampled_from(axes)))
    if method != "none":
        line.append(f"spec.num_speculative_tokens={draw(st.integers(1, 5))}")
    if method == "ngram":
        line.append(f"spec.min_ngram=2 spec.max_ngram={draw(st.integers(2, 6))}")
    line.append(f"cache={draw(st.sampled_from(('plain', 'fp8', 'fp8_fp4')))}")
    line.append(f"runtime.dtype={draw(st.sampled_from(('bfloat16', 'float32')))}")
    line.append(f"runtime.max_model_len={draw(st.integers(1, 1_048_576))}")
    line.append(f"runtime.max_num_seqs={draw(st.integers(1, 512))}")
    line.append(f"runtime.max_num_batched_tokens={draw(st.integers(1, 65_536))}")
    line.append(f"runtime.memory_fraction={draw(st.integers(1, 100)) / 100}")
    return " ".join(line).split()


def round_trip(line: list[str], engine: str) -> None:
    config = compose([*line, "task=export", f"export.engine={engine}"])
    command = export(config, engine)
    for text in (command.text, shlex.join(["env", *_pairs(command.environment), *command.argv])):
        found = import_command(text)
        assert found.unknown == []
        back = compose(found.overrides)
        expected = facts(config)
        if config.spec.method == "eagle":
            expected["spec"] = ("mtp", *expected["spec"][1:])
        assert facts(back) == expected


def _pairs(environment: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


@settings(max_examples=60, deadline=None)
@given(lines(AXES))
def test_vllm_there_and_back(line: list[str]) -> None:
    with contextlib.suppress(ConfigError):  # what the model or the engine refuses
        round_trip(line, "vllm")


@settings(max_examples=60, deadline=None)
@given(lines(SGLANG_AXES))
def test_sglang_there_and_back(line: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        round_trip(line, "sglang")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("axes", AXES)
def test_every_axis_there_and_back(engine: str, axes: str) -> None:
    for cache in ("fp8", "fp8_fp4"):
        round_trip(f"model=v4_pro spec=mtp spec.num_speculative_tokens=3 cache={cache} {axes}".split(), engine)
