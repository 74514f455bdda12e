"""How fast ``load`` is, against safetensors' own memory map read and copied, on the same bytes in the same run.

    python benchmarks/loading.py [--gib 4] [--folder DIR] [--rounds 5]

Writes a synthetic checkpoint in the official layout (plain bfloat16), reads it in turns by both ways, and prints the
medians and their ratio. The page cache is warm for both; what is compared is mapping, page faults and copying.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors import safe_open

import builder
from builder.checkpoint.folder import open_folder
from builder.checkpoint.reading import load
from builder.components.base.module import TORCH_DTYPES
from builder.components.base.spec import Origin, walk
from builder.schema.config import BuildConfig

CONFIG = {
    "model_type": "deepseek_v4", "hidden_size": 2048, "num_attention_heads": 16, "head_dim": 256,
    "qk_rope_head_dim": 64, "q_lora_rank": 512, "o_groups": 4, "o_lora_rank": 512, "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 256, "sliding_window": 128, "hc_mult": 4, "n_routed_experts": 32,
    "num_experts_per_tok": 4, "num_hash_layers": 2, "moe_intermediate_size": 1024, "vocab_size": 65536,
    "max_position_embeddings": 65536, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER_BYTES = 430_000_000
SHARD_BYTES = 1_000_000_000


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description="load against safetensors, on the same bytes")
    parser.add_argument("--gib", type=float, default=4.0, help="size of the checkpoint")
    parser.add_argument("--folder", help="where to write it; a temporary folder if not given")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        config = synthesize(folder, int(options.gib * 2**30))
        compare(config, folder, options.rounds)


def synthesize(folder: Path, size: int) -> BuildConfig:
    """A checkpoint of about ``size`` bytes in several shards."""
    layers = max(3, round((size - 540_000_000) / LAYER_BYTES))
    ratios = [0, 0, *(4 if i % 2 == 0 else 128 for i in range(layers - 2))]
    values = {**CONFIG, "num_hidden_layers": layers, "compress_ratios": ratios}
    (folder / "config.json").write_text(json.dumps(values))
    config = builder.compose(["hardware=cpu", f"checkpoint={folder}", "task=plan"])
    stage = builder.build(config)
    tensors = {
        name: (one.tensor.dtype, one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape)
        for one in walk(stage.spec)
        if one.tensor.origin is Origin.CHECKPOINT
        for name in one.official_names()
    }
    write_shards(folder, tensors)
    return config


def write_shards(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Random bits of small numbers, a shard at a time."""
    from safetensors.torch import save_file

    listed: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        name = f"model-{len(set(listed.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name)
        listed.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, (dtype, shape) in tensors.items():
        kind = TORCH_DTYPES[dtype]
        shard[name] = torch.zeros(shape, dtype=kind) if dtype == "I64" else torch.rand(shape).to(kind)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD_BYTES:
            flush()
    if shard:
        flush()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def compare(config: BuildConfig, folder: Path, rounds: int) -> None:
    """Both ways in turns; the first round of each warms the page cache and is not counted."""
    size = open_folder(folder).nbytes
    ours, theirs = [], []
    for _ in range(rounds + 1):
        theirs.append(seconds_of_safetensors(folder))
        ours.append(seconds_of_load(config, folder))
    fast, reference = (size / statistics.median(times[1:]) / 1e9 for times in (ours, theirs))
    print(f"{size / 2**30:.2f} GiB, {len(open_folder(folder).entries)} tensors, {torch.get_num_threads()} threads")
    print(f"safetensors, mapped and copied: {reference:.2f} GB/s")
    print(f"builder.load:                   {fast:.2f} GB/s")
    print(f"ratio:                          {fast / reference:.2f} (wanted: at least 0.8)")


def seconds_of_load(config: BuildConfig, folder: Path) -> float:
    """A stage built on meta, loaded into fresh memory, headers and checks included."""
    stage = builder.build(config)
    start = time.perf_counter()
    load(stage, folder)
    return time.perf_counter() - start


def seconds_of_safetensors(folder: Path) -> float:
    """Every tensor through safe_open, copied into fresh memory."""
    start = time.perf_counter()
    held: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - safe_open is no mapping
                held[name] = opened.get_tensor(name).clone()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
