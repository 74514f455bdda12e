"""What a second pipeline stage brings: prefill in micro-batches on two cores, against one rank on one core.

    python benchmarks/pipeline.py [--tokens 4096] [--rounds 5] [--kernels reference] [--json FILE]

Both have the same weights and take turns; every rank has one core and one thread. Medians of the seconds from the
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

STAGES = (1, 2)


def main() -> None:
    """Make the model, time both in turns, print."""
    parser = argparse.ArgumentParser(description="One pipeline stage against two")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="reference")
    parser.add_argument("--microbatch", type=int, default=512)
    parser.add_argument("--json", help="write the figures there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    cores = sorted(os.sched_getaffinity(0))[: max(STAGES)]
    found: dict[int, list[float]] = {stages: [] for stages in STAGES}
    with tempfile.TemporaryDirectory() as name:
        synthesize(Path(name))
        for _ in range(options.rounds):
            for stages in STAGES:
                os.sched_setaffinity(0, cores[:stages])
                found[stages].append(seconds(Path(name) / "ours", stages, options))
    one, two = (statistics.median(found[stages]) for stages in STAGES)
    micro = -(-options.tokens // options.microbatch)
    print(f"prefill of {options.tokens:,} tokens, {CONFIG['num_hidden_layers']} layers, kernels={options.kernels}")
    print(f"one rank, one core      {one:7.3f} s")
    limit = 2 * micro / (micro + 1)
    print(f"two stages, two cores   {two:7.3f} s   {one / two:.2f} times; the schedule allows {limit:.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"seconds": found, "ratio": one / two}) + "\n")


def seconds(checkpoint: Path, stages: int, options: argparse.Namespace) -> float:
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
        ]
    )
    prompt = [(31 * i + 7) % CONFIG["vocab_size"] for i in range(options.tokens)]
    return 1 / builder.generate(config, [prompt], max_new_tokens=1)["tokens_per_second"]


if __name__ == "__main__":
    main()
