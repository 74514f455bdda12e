"""A stage whose weights exceed memory runs from its files, with the same outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from safetensors.torch import save_file

import builder
from builder.assembly.stages import official
from builder.components.base.module import TORCH_DTYPES
from builder.components.base.spec import Origin, walk

TINY_FP4 = Path(__file__).parent / "data" / "checkpoints" / "tiny-fp4"

MID: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128],
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 256,
    "o_groups": 2,
    "o_lora_rank": 128,
    "sliding_window": 128,
    "index_n_heads": 8,
    "index_head_dim": 32,
    "index_topk": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "num_hash_layers": 2,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}

LIMITED = """
import json, resource, sys
import builder
from builder.planning.tasks import runner
import accelerate.hooks, builder.runtime.tasks, torch
torch.zeros(1) @ torch.zeros(1)
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
limit = used + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
outcome = runner("generate")(builder.compose(sys.argv[2:]))
print(json.dumps(outcome.document["token_ids"]))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the mid configuration, 230 MB."""
    folder = tmp_path_factory.mktemp("mid")
    (folder / "config.json").write_text(json.dumps(MID))
    random = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for one in walk(official(builder.compose(["task=plan", "model=custom", f"model.config={folder}"]))):
        shape: tuple[int, ...] = one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape
        for name in one.official_names() if one.tensor.origin is Origin.CHECKPOINT else ():
            if one.tensor.dtype == "I64":
                scores = torch.rand(MID["vocab_size"], MID["n_routed_experts"], generator=random)
                tensors[name] = scores.argsort(-1)[:, : MID["num_experts_per_tok"]].contiguous()
            else:
                width = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
                tensors[name] = (torch.randn(shape, generator=random) * width).to(TORCH_DTYPES[one.tensor.dtype])
    save_file(tensors, folder / "model.safetensors")
    return folder


def limited(megabytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(megabytes << 20), "task=generate", "hardware=cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_weights_beyond_memory_run_from_disk(checkpoint: Path) -> None:
    arguments = (f"checkpoint={checkpoint}", "prompt_ids=[5,6,7]", "generate.max_new_tokens=3")
    assert (checkpoint / "model.safetensors").stat().st_size > 200 << 20
    free = limited(4000, *arguments)
    assert free.returncode == 0, free.stderr
    assert limited(180, *arguments).returncode != 0
    offloaded = limited(180, *arguments, "hardware.offload=disk")
    assert offloaded.returncode == 0, offloaded.stderr
    assert json.loads(offloaded.stdout) == json.loads(free.stdout)


def test_offloaded_outputs_are_the_official_ones(run: Run) -> None:
    arguments = ("task=verify", f"checkpoint={TINY_FP4}", "spec=mtp", "hardware=cpu", "output=json")
    result = run(*arguments, "hardware.offload=disk")
    assert result.code == 0
    assert max(result.document["max_abs_diff"].values()) < 2e-5


def test_offloading_to_the_cpu_from_the_cpu_is_refused(run: Run) -> None:
    result = run("task=verify", f"checkpoint={TINY_FP4}", "hardware=cpu", "hardware.offload=cpu")
    message = (
        "hardware.offload=cpu: on the CPU the weights are in its memory as it is; use hardware.offload=disk, or none"
    )
    assert (result.code, result.err) == (2, f"builder: {message}\n")


FLASH = Path(__file__).parent / "data" / "checkpoints" / "tiny-flash"
DRAFT = (f"spec.checkpoint={TINY_FP4}", "model@draft=custom", f"draft.config={TINY_FP4}/config.json")


@pytest.mark.parametrize(
    "words", [("spec=mtp", "spec.num_speculative_tokens=3"), ("spec=eagle",), ("spec=draft_model", *DRAFT)], ids=str
)
def test_drafters_run_from_their_files_too(run: Run, words: tuple[str, ...]) -> None:
    lines = ("task=generate", f"checkpoint={FLASH}", "hardware=cpu", "output=json", "prompt_ids=[[1,2,3],[4,5]]")
    settings = ("generate.max_new_tokens=8", "generate.ignore_eos=true", *words)
    found = [run(*lines, *settings, f"hardware.offload={mode}").document for mode in ("none", "disk")]
    assert found[0]["token_ids"] == found[1]["token_ids"]
    assert found[0]["steps"] == found[1]["steps"]


def test_replicas_that_share_experts_keep_them_in_memory(run: Run) -> None:
    result = run(
        *("task=generate", f"checkpoint={FLASH}", "hardware=cpu", "prompt_ids=[1]", "dp=2", "ep=2"),
        "hardware.offload=disk",
    )
    assert (result.code, result.err) == (
        2,
        "builder: hardware.offload=disk: ep=2 is more than tp=1: replicas compute experts for each other, whose "
        "weights must be there; use hardware.offload=none, or ep=1\n",
    )
