"""What a second pipeline stage brings: prefill in micro-batches on two cores, against one rank on one core.

    python benchmarks/pipeline.py [--tokens 4096] [--rounds 5] [--kernels reference] [--json FILE]

All have the same weights and take turns; every rank has one core and one thread. Medians of the seconds from the
first pass to the first token; loading is left out. The limit follows from the schedule: with m micro-batches a stage is
idle for one of m + 1 turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from forward import CONFIG, synthesize

import builder

CONTENDERS = {"one rank, one core, whole prompt": (1, False), "one rank, one core, in parts": (1, True),
              "two stages, two cores, in parts": (2, True)}  # fmt: skip
"""Stages, and whether the prompt is cut."""


def main() -> None:
    """Make the model, time all in turns, print."""
    parser = argparse.ArgumentParser(description="One pipeline stage against two")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--microbatch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="reference")
    parser.add_argument("--json", help="write the figures there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder))
        for _ in range(options.rounds):
            for name, (stages, cut) in CONTENDERS.items():
                os.sched_setaffinity(0, cores[:stages])
                found[name].append(seconds(Path(folder) / "ours", stages, options, cut=cut))
    medians = {name: statistics.median(times) for name, times in found.items()}
    *ones, two = medians.values()
    micro = -(-options.tokens // options.microbatch)
    print(f"prefill of {options.tokens:,} tokens, {CONFIG['num_hidden_layers']} layers, kernels={options.kernels}")
    for name, median in medians.items():
        print(f"{name:32} {median:7.3f} s   {median / two:.2f}")
    print(f"of the faster rank alone: {min(ones) / two:.2f}; the schedule allows {2 * micro / (micro + 1):.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"seconds": found, "ratio": min(ones) / two}) + "\n")


def seconds(checkpoint: Path, stages: int, options: argparse.Namespace, *, cut: bool) -> float:
    """One prefill."""
    config = builder.compose(
        [
            "task=generate",
            f"checkpoint={checkpoint}",
            "hardware=cpu",
            f"kernels={options.kernels}",
            f"pp={stages}",
            "parallel.partition=even",
            f"parallel.microbatch_tokens={options.microbatch}",
            f"runtime.max_num_batched_tokens={options.microbatch if cut else options.tokens}",
        ]
    )
    prompt = [(31 * i + 7) % CONFIG["vocab_size"] for i in range(options.tokens)]
    return 1 / builder.generate(config, [prompt], max_new_tokens=1)["tokens_per_second"]


if __name__ == "__main__":
    main()
