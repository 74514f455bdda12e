"""Greedy generation with the checkpoint that ships, with and without speculation, in one run.

    python benchmarks/speculation.py [--methods mtp,ngram] [--kernels reference,compiled] [--tokens 128] [--prompts 4]
                                     [--rounds 5] [--clock cpu] [--json FILE]

Prompts are the beginnings of files of Python's standard library that training did not see. In every round each number
of drafts (0: no speculation) continues every prompt, one at a time, in turn, so that whatever else the machine does
meets all of them; medians are compared. Where others use the machine, ``--clock cpu`` counts the processor's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import builder
from builder.runtime.generate import Generation, generate_tokens
from builder.runtime.model import Model, open_model
from builder.schema.groups import GenerateConfig

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from train_tiny import is_held_out, stdlib_files, tokens_of  # pyright: ignore[reportMissingImports]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MOST_DRAFTS = 6
PROMPT_TOKENS = 256


@dataclass(frozen=True)
class Row:
    """One number of drafts. ratio: times the speed without speculation; equal: prompts continued with its tokens."""

    kernels: str
    method: str
    drafts: int
    tokens_per_second: float
    ratio: float
    tokens_per_step: float
    first_accepted: float | None
    drafting_share: float
    equal: int
    prompts: int


@dataclass(frozen=True)
class Contender:
    """A way to generate: a method and its number of drafts, 0 for none."""

    method: str
    drafts: int
    model: Model


def main() -> None:
    """Load, generate in turns, print."""
    options = arguments()
    torch.set_num_threads(options.threads)
    prompts = held_out_prompts(options.prompts)
    print(f"torch {torch.__version__}, {options.threads} thread, {options.clock} time, medians of {options.rounds}; ")
    print(f"{len(prompts)} prompts of {PROMPT_TOKENS} tokens, {options.tokens} new ones each, one prompt at a time")
    rows = [
        row
        for kernels in options.kernels.split(",")
        for row in measure(kernels, options.methods.split(","), prompts, options)
    ]
    print_table(rows)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Generation with and without speculation")
    parser.add_argument("--methods", default="mtp,ngram")
    parser.add_argument("--kernels", default="reference,compiled")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", help="write the figures there")
    return parser.parse_args()


def held_out_prompts(count: int) -> list[list[int]]:
    """The beginnings of ``count`` files spread over those that were never trained on."""
    held = [tokens_of(content) for name, content in stdlib_files() if is_held_out(name)]
    long = [tokens[:PROMPT_TOKENS] for tokens in held if len(tokens) > PROMPT_TOKENS]
    return [long[index * len(long) // count] for index in range(count)]


def contender(kernels: str, method: str, drafts: int) -> Contender:
    """Its model, loaded."""
    lines = ["task=generate", "model=tiny", "hardware=cpu", f"kernels={kernels}", "runtime.max_num_batched_tokens=512"]
    chosen = [f"spec={method}", f"spec.num_speculative_tokens={drafts}"] if drafts else ["spec=none"]
    return Contender(method, drafts, open_model(builder.compose([*lines, *chosen])))


def measure(kernels: str, methods: list[str], prompts: list[list[int]], options: argparse.Namespace) -> list[Row]:
    """Every number of drafts with one set of kernels."""
    contenders = [contender(kernels, "none", 0)]
    contenders += [contender(kernels, method, drafts) for method in methods for drafts in range(1, MOST_DRAFTS + 1)]
    settings = GenerateConfig(max_new_tokens=options.tokens, temperature=0.0, top_p=1.0, ignore_eos=True, stream=False)
    times: list[list[float]] = [[] for _ in contenders]
    found: list[list[Generation]] = [[] for _ in contenders]
    for number in range(options.rounds + 1):
        for one, seconds, generated in zip(contenders, times, found, strict=True):
            took, generated[:] = timed(one.model, prompts, settings, CLOCKS[options.clock])
            if number:  # the first round warms up
                seconds.append(took)
    plain = statistics.median(times[0])
    expected = [one.token_ids for one in found[0]]
    return [
        row_of(kernels, one, statistics.median(seconds), plain, generated, expected)
        for one, seconds, generated in zip(contenders, times, found, strict=True)
    ]


def timed(
    model: Model, prompts: list[list[int]], settings: GenerateConfig, clock: Callable[[], float]
) -> tuple[float, list[Generation]]:
    """Seconds for all prompts, one after the other, their prefill included."""
    begun = clock()
    generated = [generate_tokens(model, [prompt], settings) for prompt in prompts]
    return clock() - begun, generated


def row_of(
    kernels: str, one: Contender, seconds: float, plain: float, found: list[Generation], expected: list[list[list[int]]]
) -> Row:
    """The figures of one contender; those of drafting are sums over the prompts."""
    parts = [generation.statistics for generation in found]
    whole = sum(parts[1:], parts[0])
    drafted = whole.drafted[0]
    return Row(
        kernels,
        one.method,
        one.drafts,
        sum(len(generation.token_ids[0]) for generation in found) / seconds,
        plain / seconds,
        whole.new_tokens / whole.target_steps,
        whole.accepted[0] / drafted if drafted else None,
        whole.draft_seconds / (whole.draft_seconds + whole.verify_seconds),
        sum(generation.token_ids == tokens for generation, tokens in zip(found, expected, strict=True)),
        len(found),
    )


def print_table(rows: list[Row]) -> None:
    """As Markdown."""
    print("\n| kernels | method | k | tokens/s | times none | tokens/step | first drafts accepted | drafting | equal |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        accepted = "-" if row.first_accepted is None else f"{row.first_accepted:.1%}"
        print(
            f"| {row.kernels} | {row.method} | {row.drafts} | {row.tokens_per_second:.0f} | {row.ratio:.2f} "
            f"| {row.tokens_per_step:.2f} | {accepted} | {row.drafting_share:.0%} | {row.equal} of {row.prompts} |"
        )


if __name__ == "__main__":
    main()
