"""How fast a checkpoint's forward pass is on this machine: prefill of one prompt, and decode after it."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from builder.runtime.model import Model
from builder.runtime.step import cached_step, last_rows

PROMPT, DECODED, ROUNDS = 512, 32, 3


def measure(model: Model) -> dict[str, Any] | None:
    """Tokens per second, medians of ``ROUNDS`` after one round that is not counted; random tokens, batch 1.

    One pass after the other, also through several stages. None on a rank that does not lead.
    """
    config = model.config
    length = max(1, min(PROMPT, config.runtime.max_model_len - DECODED, config.runtime.max_num_batched_tokens))
    random = torch.Generator().manual_seed(config.seed)
    count = length + DECODED
    ids = [int(token) for token in torch.randint(0, config.model.vocab_size, (count,), generator=random)]
    rounds = [_round(model, ids, length) for _ in range(ROUNDS + 1)][1:]
    if model.peers.collect(None) is None:
        return None
    return {
        "model": config.model.name,
        "dtype": config.runtime.dtype,
        "prefill": {"tokens": length, "tokens_per_second": length / median(first for first, _ in rounds)},
        "decode": {"tokens": DECODED, "tokens_per_second": DECODED / median(second for _, second in rounds)},
    }


def _round(model: Model, ids: list[int], length: int) -> tuple[float, float]:
    cache = model.cache(1, len(ids))

    def run(tokens: list[int]) -> None:
        step = cached_step(cache, [tokens], [0])
        if (stream := model.run(step)) is None:
            model.peers.decided(1, 1)
        else:
            chosen = model.stage.predict(stream[last_rows(step)]).argmax(dim=-1)
            model.peers.publish(chosen.unsqueeze(-1).cpu())

    with torch.inference_mode():
        begun = time.perf_counter()
        run(ids[:length])
        prefilled = time.perf_counter()
        for token in ids[length:]:
            run([token])
    return prefilled - begun, time.perf_counter() - prefilled
