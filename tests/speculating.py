"""Models that speculate in every way over one target, for tests: checkpoints, and random weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from models import CPU, random_ids, random_model
from torch import Tensor

import builder
from builder.assembly.build import build_rank
from builder.assembly.stages import assemble
from builder.runtime.model import Model, open_model
from builder.schema.groups import GenerateConfig

METHODS = ("ngram", "mtp", "eagle", "draft_model")

NOISE = 0.02
"""Of the weights of a draft model or an EAGLE head, relative."""

LENGTHS = (3, 4, 5, 127, 128, 129)
"""Prompts that end before, on and after windows of 4 and of 128."""

_CHECKPOINTS = Path(__file__).parent / "data" / "checkpoints"
_FILES = {"flash": _CHECKPOINTS / "tiny-flash", "fp4": _CHECKPOINTS / "tiny-fp4"}
_RANDOM = {
    "random": {},
    "random_narrow": {
        "hidden_size": "64",
        "num_hidden_layers": "4",
        "layer_types": "[hca,csa,swa,csa]",
        "num_hash_layers": "1",
        "sliding_window": "5",
        "index_topk": "3",
    },
}
SOURCES = (*_FILES, "shipped", *_RANDOM)
"""Where a target's weights come from: the reference checkpoints, the one that ships, and random ones."""

_COMMON = ("task=generate", "hardware=cpu", "runtime.weights=float32", "runtime.max_num_batched_tokens=512")


def settings(count: int, temperature: float = 0.0, top_p: float = 1.0) -> GenerateConfig:
    """``count`` new tokens, whatever they are."""
    return GenerateConfig(max_new_tokens=count, temperature=temperature, top_p=top_p, ignore_eos=True, stream=False)


def prompts_for(model: Model, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """A random prompt of each length."""
    return [random_ids(count, model.config.model.vocab_size, seed=count) for count in lengths]


def speculating(source: str, method: str, drafts: int, *more: str) -> Model:
    """A target of ``source`` and a drafter, in float64 unless ``more`` says otherwise.

    A draft model is the target with slightly other weights, so that some of its drafts stand and some do not; an EAGLE
    head is the MTP block, changed likewise.
    """
    chosen = [f"spec={method}", *([f"spec.num_speculative_tokens={drafts}"] if method != "none" else [])]
    if method == "draft_model":
        chosen += _sizes(source, "model@draft", "draft")
    config = builder.compose([*_COMMON, *_sizes(source, "model", "model"), "runtime.dtype=float64", *chosen, *more])
    assembly = assemble(config)
    model = Model(assembly, build_rank(assembly, assembly.place(0), CPU).eval(), CPU)
    fill(model, source)
    return model


def fill(model: Model, source: str) -> None:
    """Give a model the weights of ``source``; a draft model and an EAGLE head get noisy ones."""
    known, random = _weights(source), torch.Generator().manual_seed(5)
    noisy = {"draft_model": "draft.", "eagle": "mtp."}.get(model.config.spec.method)
    with torch.no_grad():
        for name, tensor in (*model.stage.named_parameters(), *model.stage.named_buffers()):
            if name == "mtp_stash.rows":
                continue
            tensor.copy_(known[name.removeprefix("draft.")])
            if noisy and name.startswith(noisy) and tensor.is_floating_point() and not name.endswith("frequencies"):
                tensor.mul_(
                    1 + NOISE * torch.randn(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)
                )


def _sizes(source: str, group: str, package: str) -> list[str]:
    # The overrides that choose the model's sizes, for the target or for the draft.
    if source in _FILES:
        return [f"{group}=custom", f"{package}.config={_FILES[source]}/config.json"]
    changed = _RANDOM.get(source, {})
    return [f"{group}=tiny", *(f"{package}.{key}={value}" for key, value in changed.items())]


@cache
def _weights(source: str) -> dict[str, Tensor]:
    # The target's tensors and those of its MTP block, by name.
    lines = [*_COMMON, "runtime.dtype=float64", "spec=mtp"]
    if source in _RANDOM:
        model = random_model(builder.compose([*lines, *_sizes(source, "model", "model")]), seed=1)
    else:
        model = open_model(
            builder.compose([*lines, f"checkpoint={_FILES[source]}" if source in _FILES else "model=tiny"])
        )
    return dict(model.stage.named_parameters()) | dict(model.stage.named_buffers())
