"""task=convert: write the files of ``checkpoint`` to ``out`` in another layout or format."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from builder.assembly.build import build
from builder.checkpoint.convert import ConvertReport, blocks_in, convert
from builder.errors import ConfigError, Problem
from builder.outcome import Outcome
from builder.schema.config import BuildConfig
from builder.schema.model import ModelConfig
from builder.schema.spec import DSparkSpecConfig, MTPSpecConfig, SpecConfig

SAVED = "convert.json"


def run_convert(config: BuildConfig) -> Outcome:
    """The whole checkpoint, whatever spec= and pp= say. Raises ConfigError or CheckpointError."""
    source, target, options = config.checkpoint, config.out, config.convert
    assert options is not None, "task=convert brings its keys"
    if source is None or target is None:
        keys = {"checkpoint": source, "out": target}
        problems = [Problem(key, None, "is missing", f"give {key}=DIR") for key, value in keys.items() if value is None]
        raise ConfigError(problems)
    report = convert_folder(config, source, target, to=options.to, weights=options.weights)
    document = {"checkpoint": source, "out": target, "to": options.to, "weights": options.weights, **asdict(report)}
    return Outcome(document, 0, lambda: _shown(document), SAVED)


def convert_folder(
    config: BuildConfig, source: str | Path, target: str | Path, *, to: str, weights: str
) -> ConvertReport:
    """Convert the files of ``config.model`` in ``source``. Raises ConfigError or CheckpointError."""
    whole = replace(
        config,
        parallel=replace(config.parallel, pp=1, tp=1, ep=1, dp=1, partition="auto"),
        spec=_drafter(config.model, held=blocks_in(source)),
        runtime=replace(config.runtime, weights=weights),
        draft=None,
    )
    return convert(build(whole), config.model, source, target, to=to, weights=weights)


def _drafter(model: ModelConfig, *, held: bool) -> SpecConfig:
    """The method that brings every block the folder holds."""
    if held and model.is_dspark:
        return DSparkSpecConfig(method="dspark", num_speculative_tokens=1)
    if held and model.has_mtp:
        return MTPSpecConfig(method="mtp", num_speculative_tokens=1, stash=False)
    return SpecConfig(method="none")


def _shown(document: dict[str, Any]) -> Text:
    files, reused, left_out = (len(document[name]) for name in ("files", "reused", "left_out"))
    text = f"{document['tensors']:,} tensors, {document['bytes_written']:,} bytes in {files} files of {document['out']}"
    text += f" ({reused} from an earlier run)" if reused else ""
    text += f"; {left_out} tensors that nothing reads were left out" if left_out else ""
    return Text(f"{text}.")
