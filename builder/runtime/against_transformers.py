"""The same inputs through transformers' own DeepSeek-V4, as known outputs for ``task=verify``."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from builder.errors import ConfigError, Problem
from builder.runtime.conversion import convert_folder
from builder.runtime.model import Model
from builder.runtime.verify import EXPECTED_FILE, Expected, read_expected

PROMPT, DECODED, BATCH = 150, 8, 2
"""Random inputs for a checkpoint that brings none: over the first window of 128 tokens."""


def transformers_outputs(model: Model) -> Expected:
    """Logits of transformers (eager) for the checkpoint's known inputs, or for random ones.

    transformers has no MTP, and no hidden state before its hc_head: logits only. Raises ConfigError without it.
    """
    if importlib.util.find_spec("transformers") is None:
        reason = "the transformers package is not installed"
        raise ConfigError([Problem("verify.against", "transformers", reason, "pip install 'transformers>=5.24,<5.25'")])
    ids, length = _inputs(model)
    config, source = model.config, model.config.checkpoint or ""
    with tempfile.TemporaryDirectory() as folder:
        convert_folder(config, source, folder, to="transformers", weights="float32")
        library = cast("Any", importlib.import_module("transformers"))
        other = library.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            local_files_only=True,
        ).eval()
    return Expected(ids, length, _run(other, ids, length))


def _inputs(model: Model) -> tuple[Tensor, int]:
    if (Path(model.config.checkpoint or "") / EXPECTED_FILE).is_file():
        known = read_expected(model.config.checkpoint or "")
        return known.input_ids, known.prompt_length
    room = min(PROMPT + DECODED, model.config.model.max_position_embeddings)
    random = torch.Generator().manual_seed(model.config.seed)
    ids = torch.randint(0, model.config.model.vocab_size, (BATCH, room), generator=random)
    return ids, max(1, room - DECODED)


def _run(other: Any, ids: Tensor, length: int) -> dict[str, Tensor]:
    with torch.inference_mode(), warnings.catch_warnings():
        # 5.24 already speaks of the next name of past_key_values.
        warnings.simplefilter("ignore", FutureWarning)
        first = other(ids[:, :length], use_cache=True)
        cache, decoded = first.past_key_values, list[Tensor]()
        for at in range(length, ids.shape[1]):
            step = other(ids[:, at : at + 1], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            decoded.append(step.logits)
    outputs: dict[str, Tensor] = {"prefill_logits": first.logits}
    if decoded:
        outputs["decode_logits"] = torch.cat(decoded, dim=1)
    return outputs
