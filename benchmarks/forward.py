"""How fast a forward pass is, against transformers (eager) with the same weights in the same run.

    python benchmarks/forward.py [--quick] [--dtypes float32,bfloat16] [--threads 2] [--rounds 5] [--clock cpu]
                                 [--json FILE]

Writes a small model with random weights, loads it here and in transformers, refuses to go on when their logits differ,
and times both in turns: whatever else the machine does meets all of them, and medians are compared. Beside it stand
the machine's own limits, measured in the same run: matrix products for prefill, reading memory for decode.
Where others use the machine, ``--threads 1 --clock cpu`` counts the time that each contender really had.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import builder
from builder.assembly.stages import assemble
from builder.checkpoint.convert import convert
from builder.checkpoint.reading import load
from builder.components.base.module import TORCH_DTYPES
from builder.components.base.spec import Origin, walk
from builder.kernels.compiled.native import operations
from builder.runtime.cache import Cache, declared_rows
from builder.runtime.model import Model
from builder.runtime.step import cached_step
from builder.schema.config import BuildConfig

CONFIG = {
    "model_type": "deepseek_v4", "hidden_size": 512, "num_hidden_layers": 8,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128], "num_attention_heads": 8, "head_dim": 64,
    "qk_rope_head_dim": 16, "q_lora_rank": 256, "o_groups": 2, "o_lora_rank": 128, "n_routed_experts": 16,
    "moe_intermediate_size": 512, "num_experts_per_tok": 4, "index_topk": 64, "index_n_heads": 8,
    "index_head_dim": 32, "num_hash_layers": 2, "vocab_size": 8192, "hc_mult": 4, "sliding_window": 128,
    "max_position_embeddings": 65536, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
    "num_nextn_predict_layers": 0, "torch_dtype": "float32",
}  # fmt: skip
CASES = (("prefill", 512), ("prefill", 2048), ("decode", 1), ("decode", 8))
TARGETS = {("float32", "prefill", 512): 2.0, ("prefill", 2048): 4.0, ("decode", 1): 2.5, ("decode", 8): 1.8}
"""Times transformers: of a case, or of a case in one dtype."""
KERNELS = ("reference", "compiled")
CONTEXT, STEPS = 256, 10
LONG, SHORT = 32_768, 1_024
MOST_TIMES_LONG = 2.0

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Seconds = dict[str, float]


@dataclass
class Watch:
    """The clock of this run."""

    now: Callable[[], float] = time.perf_counter


WATCH = Watch()


@dataclass(frozen=True)
class Row:
    """One case: tokens a second of each contender, and the share of the machine's limit that compiled reaches."""

    dtype: str
    case: str
    tokens_per_second: dict[str, float]
    ratio: dict[str, float]
    target: float | None
    share: float
    of: str


@dataclass(frozen=True)
class Limits:
    """What the machine does in this run: matrix products and reading memory."""

    flops: float
    bytes_per_second: float


def main() -> None:
    """Make the model, compare, time, print."""
    options = arguments()
    torch.set_num_threads(options.threads)
    WATCH.now = CLOCKS[options.clock]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        print(
            f"torch {torch.__version__}, threads: {torch.get_num_threads()}, {options.clock} time, "
            f"medians of {options.rounds}"
        )
        if not options.quick:
            os.environ["XDG_CACHE_HOME"] = str(folder)
        start = time.perf_counter()
        operations()
        how = "cached" if options.quick else "cold"
        print(f"compiled kernels ready after {time.perf_counter() - start:.1f} s ({how})")
        synthesize(folder)
        exact_logits = their_logits(folder, "float32")
        for dtype in options.dtypes.split(","):
            rows += measure(folder, dtype, exact_logits, options)
    print_table(rows)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A forward pass, against transformers")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--quick", action="store_true", help="short prompt and one request only")
    parser.add_argument("--json", help="write the figures there")
    return parser.parse_args()


def synthesize(folder: Path) -> None:
    """Random weights in the official layout, in ``ours``, and the same for transformers, in ``theirs``."""
    ours, theirs = folder / "ours", folder / "theirs"
    ours.mkdir()
    (ours / "config.json").write_text(json.dumps(CONFIG))
    config = compose(folder, "float32", "reference")
    stage = builder.build(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: random_tensor(
            name, one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape, one.tensor.dtype, generator
        )
        for one in walk(stage.spec)
        if one.tensor.origin is Origin.CHECKPOINT
        for name in one.official_names()
    }
    save_file(tensors, ours / "model.safetensors")
    convert(stage, config.model, ours, theirs, to="transformers", weights="float32")


def random_tensor(name: str, shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
    """Of a size that keeps every layer's output near one."""
    if name.endswith("tid2eid"):
        experts = [torch.randperm(CONFIG["n_routed_experts"], generator=generator) for _ in range(shape[0])]
        return torch.stack(experts)[:, : shape[1]].to(TORCH_DTYPES[dtype]).contiguous()
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=TORCH_DTYPES[dtype])
    size = 1.0 if name == "embed.weight" else shape[-1] ** -0.5 if len(shape) > 1 else 0.1
    return (torch.randn(shape, generator=generator) * size).to(TORCH_DTYPES[dtype])


def compose(folder: Path, dtype: str, kernels: str) -> BuildConfig:
    """Weights and computation in one dtype."""
    return builder.compose(
        ["task=plan", "hardware=cpu", "cache=plain", f"checkpoint={folder / 'ours'}", f"kernels={kernels}",
         f"runtime.dtype={dtype}", f"runtime.weights={dtype}"]
    )  # fmt: skip


def open_ours(folder: Path, dtype: str, kernels: str) -> Model:
    """The model with one implementation of the operations."""
    assembly = assemble(compose(folder, dtype, kernels))
    stage = builder.build(assembly.config)
    load(stage, folder / "ours")
    return Model(assembly, stage.eval(), torch.device("cpu"))


def open_theirs(folder: Path, dtype: str) -> Any:
    """transformers' own model."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "theirs", dtype=TORCH_DTYPES["F32" if dtype == "float32" else "BF16"], attn_implementation="eager"
    )
    return model.eval()


# Agreement


def their_logits(folder: Path, dtype: str) -> Tensor:
    """What transformers says: [2, 300, vocabulary]."""
    return open_theirs(folder, dtype)(sample()).logits.float()


def sample() -> Tensor:
    """Inputs for the comparison."""
    return torch.randint(0, CONFIG["vocab_size"], (2, 300), generator=torch.Generator().manual_seed(1))


def check(models: dict[str, Model], theirs: Any, exact_logits: Tensor) -> None:
    """Exit unless the logits agree; medians over tokens, since rounding may turn a choice between near equals.

    In float32 with transformers', to 1e-4; in bfloat16 both are compared with float32, and ours may be no farther.
    """
    spread = exact_logits.std()
    other = distance(theirs(sample()).logits.float(), exact_logits) / spread
    allowed = max(1e-4, 1.2 * other)
    for name, model in models.items():
        ours = distance(logits_of(model, sample()), exact_logits) / spread
        print(f"  {name}: logits differ from float32 by {ours:.1e} of their deviation, transformers by {other:.1e}")
        if not ours <= allowed:
            sys.exit(f"{name} is off by {ours:.1e}, more than {allowed:.1e}: no speeds are reported")


def distance(found: Tensor, expected: Tensor) -> float:
    """The median over tokens of the largest difference."""
    return float((found - expected).abs().amax(-1).median())


def logits_of(model: Model, ids: Tensor) -> Tensor:
    """[batch, tokens, vocabulary]."""
    cache = model.cache(*ids.shape)
    return forward(model, cache, ids).view(*ids.shape, -1).float()


def forward(model: Model, cache: Cache, ids: Tensor) -> Tensor:
    """Logits of the next tokens [batch, tokens] of all requests."""
    return model.stage.predict(model.stage.run_layers(cached_step(cache, ids.tolist(), range(len(ids)))))


# Speed


def measure(folder: Path, dtype: str, exact_logits: Tensor, options: argparse.Namespace) -> Iterator[Row]:
    """All cases in one dtype."""
    models = {kernels: open_ours(folder, dtype, kernels) for kernels in KERNELS}
    theirs = open_theirs(folder, dtype)
    print(dtype)
    check(models, theirs, exact_logits)
    for kind, size in CASES:
        if options.quick and size not in (512, 1):
            continue
        contenders = {**{name: ours_for(kind, size, model) for name, model in models.items()},
                      "transformers": theirs_for(kind, size, theirs)}  # fmt: skip
        found = in_turns(contenders, options.rounds)
        limits = machine_limits(dtype)
        yield row_of(dtype, kind, size, found, models["compiled"], limits)
        print(f"  {kind} {size}: " + ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in found.items()))
    if not options.quick:
        yield long_context(dtype, models["compiled"], options.rounds)


def in_turns(contenders: dict[str, Callable[[], float]], rounds: int) -> Seconds:
    """The median seconds of each; the first round warms up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            times[name].append(run())
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def ours_for(kind: str, size: int, model: Model) -> Callable[[], float]:
    """A prefill of ``size`` tokens, or a decode step of ``size`` requests: seconds of one."""
    ids = inputs(kind, size)
    if kind == "prefill":
        cache = model.cache(1, size)

        def prefill() -> float:
            cache.reset(0)
            return timed(lambda: forward(model, cache, ids))

        return prefill
    cache = model.cache(size, CONTEXT + 100 * STEPS)
    forward(model, cache, ids)
    return lambda: timed(lambda: forward(model, cache, ids[:, :1]), STEPS)


def theirs_for(kind: str, size: int, model: Any) -> Callable[[], float]:
    """The same in transformers."""
    ids = inputs(kind, size)
    if kind == "prefill":
        return lambda: timed(lambda: model(ids, use_cache=True))
    past = model(ids, use_cache=True).past_key_values
    return lambda: timed(lambda: model(ids[:, :1], cache=past, use_cache=True), STEPS)


def inputs(kind: str, size: int) -> Tensor:
    """Random token ids: the prompt."""
    shape = (1, size) if kind == "prefill" else (size, CONTEXT)
    return torch.randint(0, CONFIG["vocab_size"], shape, generator=torch.Generator().manual_seed(2))


def timed(run: Callable[[], object], times: int = 1) -> float:
    """Seconds of one run."""
    start = WATCH.now()
    for _ in range(times):
        run()
    return (WATCH.now() - start) / times


def long_context(dtype: str, model: Model, rounds: int) -> Row:
    """Decode of one request behind a long past, against a short one; the past is random."""
    found = in_turns({f"{length}": decode_behind(model, length) for length in (SHORT, LONG)}, rounds)
    times = found[f"{LONG}"] / found[f"{SHORT}"]
    speed = {f"compiled at {length}": 1 / seconds for length, seconds in found.items()}
    case = f"decode of 1 at {LONG:,} over decode at {SHORT:,} (wanted: at most {MOST_TIMES_LONG:.0f})"
    return Row(dtype, case, speed, {"time": times}, None, 0.0, "")


def decode_behind(model: Model, length: int) -> Callable[[], float]:
    """Seconds of a decode step after ``length`` tokens."""
    cache, token = model.cache(1, length + 100 * STEPS), torch.zeros((1, 1), dtype=torch.int64)
    for part, rows in declared_rows(model.stage, cache.form):
        kept = cache.table(part, rows.name) if rows.ratio else cache.ring(part, rows.name)
        kept.memory.normal_()
    cache.lengths[0] = length
    return lambda: timed(lambda: forward(model, cache, token), STEPS)


# The machine


def machine_limits(dtype: str) -> Limits:
    """Products of 2,048 x 2,048 matrices in the dtype, and the sum of 512 MiB."""
    size, memory = 2048, torch.ones(2**27)
    a, b = (torch.randn(size, size, dtype=getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(a)
    product = statistics.median(timed(lambda: torch.mm(a, b, out=out)) for _ in range(5))
    reading = statistics.median(timed(memory.sum) for _ in range(5))
    return Limits(2 * size**3 / product, memory.nbytes / reading)


def row_of(dtype: str, kind: str, size: int, found: Seconds, model: Model, limits: Limits) -> Row:
    """Prefill is held against matrix products, decode against reading the weights that a step touches."""
    target = TARGETS.get((dtype, kind, size), TARGETS.get((kind, size)))
    ratio = {name: found["transformers"] / found[name] for name in KERNELS}
    speed = {name: size / seconds for name, seconds in found.items()}
    if kind == "prefill":
        needed, of = 2 * size * activated(model) / limits.flops, f"{limits.flops / 1e9:.0f} GFLOP/s"
    else:
        read = touched(model, size) * model.stage.dtype.itemsize
        needed, of = read / limits.bytes_per_second, f"{limits.bytes_per_second / 1e9:.1f} GB/s"
    return Row(dtype, f"{kind} {size}", speed, ratio, target, needed / found["compiled"], of)


def activated(model: Model) -> int:
    """Weights that a token is multiplied with (the products of attention are not counted)."""
    return builder.plan(model.config).to_dict()["model"]["activated_parameters"]


def touched(model: Model, batch: int) -> float:
    """Weights that a step of ``batch`` tokens reads, if each token chooses its experts at random."""
    per_expert = 3 * CONFIG["hidden_size"] * CONFIG["moe_intermediate_size"] * CONFIG["num_hidden_layers"]
    chosen, experts = CONFIG["num_experts_per_tok"], CONFIG["n_routed_experts"]
    read = experts * (1 - (1 - chosen / experts) ** batch)
    return activated(model) + per_expert * (read - chosen)


def print_table(rows: list[Row]) -> None:
    """As Markdown."""
    print(
        "\n| dtype | case | reference | compiled | transformers | reference ratio | compiled ratio | target | share |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "time" in row.ratio:
            print(f"| {row.dtype} | {row.case}: {row.ratio['time']:.2f} |" + " |" * 7)
            continue
        speeds = " | ".join(f"{row.tokens_per_second[name]:,.0f}" for name in (*KERNELS, "transformers"))
        ratios = " | ".join(f"{row.ratio[name]:.2f}" for name in KERNELS)
        share, target = f"{row.share:.0%} of {row.of}", row.target or "-"
        print(f"| {row.dtype} | {row.case} | {speeds} | {ratios} | {target} | {share} |")


if __name__ == "__main__":
    main()
