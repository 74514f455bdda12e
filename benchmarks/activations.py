"""The plan's estimate of activations beside the measured peak of our own forward pass on the CPU.

    python benchmarks/activations.py [--config FILE] [--dtype float32]

Builds the mid configuration (hidden 512, 8 layers) with random weights and ``kernels=reference``, runs a prefill of 512
and of 2,048 tokens and decode steps, and prints peak and estimate. The peak is the allocator's own: the largest sum of
what torch's profiler saw allocated and freed during the step. Weights and cache are there before and do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile

import builder
from builder.assembly.stages import assemble
from builder.components.stage.module import Stage
from builder.planning.activations import activation_bytes
from builder.runtime.cache import Cache
from builder.runtime.step import cached_step, last_rows

MID = {
    "model_type": "deepseek_v4", "vocab_size": 8192, "hidden_size": 512, "num_hidden_layers": 8,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128], "num_attention_heads": 8, "head_dim": 64, "qk_rope_head_dim": 16,
    "q_lora_rank": 256, "o_groups": 2, "o_lora_rank": 128, "sliding_window": 128, "index_n_heads": 8,
    "index_head_dim": 32, "index_topk": 64, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 512, "num_hash_layers": 2, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "hc_mult": 4, "max_position_embeddings": 65536, "torch_dtype": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A step: ``requests`` requests of ``tokens`` new tokens each after ``past`` ones."""

    name: str
    requests: int
    tokens: int
    past: int = 0


CASES = (
    Case("prefill 512", 1, 512),
    Case("prefill 2,048", 1, 2048),
    Case("decode 1 after 2,047", 1, 1, 2047),
    Case("decode 32 after 2,047", 32, 1, 2047),
)


def main() -> None:
    """Measure every case, print."""
    parser = argparse.ArgumentParser(description="activations: estimate against measured peak")
    parser.add_argument("--config", help="a config.json; the mid configuration if not given")
    parser.add_argument("--dtype", default="float32", help="runtime.dtype")
    options = parser.parse_args()
    model = json.loads(Path(options.config).read_text(encoding="utf-8")) if options.config else MID
    for case in CASES:
        measured, estimated = compare(case, model, options.dtype)
        off = estimated / measured - 1
        print(f"{case.name:24} measured {measured:13,}  estimated {estimated:13,}  {off:+.1%}")


def compare(case: Case, model: dict[str, object], dtype: str = "float32") -> tuple[int, int]:
    """Measured peak and estimate of one case, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model), encoding="utf-8")
        length = case.past + case.tokens
        config = builder.compose(
            [
                "task=plan", "model=custom", f"model.config={folder}", "hardware=cpu", "kernels=reference",
                f"runtime.dtype={dtype}", f"runtime.max_num_batched_tokens={case.requests * case.tokens}",
                f"runtime.max_num_seqs={case.requests}", f"runtime.max_model_len={length}",
            ]
        )  # fmt: skip
        stage = builder.build(config, device="cpu")
        fill(stage)
        cache = Cache(stage, assemble(config).cache_format, case.requests, length, torch.device("cpu"))
        return measured_peak(stage, cache, case), activation_bytes(config, last_stage=True)


def fill(stage: Stage) -> None:
    """Random weights, reproducible; a hash layer's table names experts."""
    random = torch.Generator().manual_seed(0)
    tables = [buffer for buffer in stage.buffers() if buffer.dtype == torch.int64]
    for tensor in (*stage.parameters(), *tables):
        if tensor.dtype == torch.int64:
            tensor.copy_(torch.rand(tensor.shape[0], 16, generator=random).argsort(-1)[:, : tensor.shape[1]])
        elif tensor.dim() > 1:
            tensor.data.copy_(torch.randn(tensor.shape, generator=random) * tensor.shape[-1] ** -0.5)
        else:
            tensor.data.copy_(torch.rand(tensor.shape, generator=random))


def measured_peak(stage: Stage, cache: Cache, case: Case) -> int:
    """The largest number of bytes that one step had allocated at once; logits of each request's last token included."""
    tokens = [[(7 * row + at) % 512 for at in range(case.tokens)] for row in range(case.requests)]
    slots = list(range(case.requests))
    _forward(stage, cache, tokens, slots, case)  # what a first step allocates for good is not a step's own
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        _forward(stage, cache, tokens, slots, case)
    results = cast("Any", record.profiler).kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def _forward(stage: Stage, cache: Cache, tokens: list[list[int]], slots: list[int], case: Case) -> None:
    cache.lengths[:] = [case.past] * case.requests
    with torch.inference_mode():
        step = cached_step(cache, tokens, slots)
        stage.predict(stage.run_layers(step)[last_rows(step)])


if __name__ == "__main__":
    main()
