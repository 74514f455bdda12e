"""Small models for tests: configurations, random weights, steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import builder
from builder.assembly.build import build_rank
from builder.assembly.stages import assemble
from builder.components.stage.module import Stage
from builder.runtime.cache import Cache
from builder.runtime.model import Model
from builder.runtime.step import cached_step

CPU = torch.device("cpu")


def small(*overrides: str) -> Any:
    """The tiny model on the CPU, plan only; ``model.x=`` overrides change it."""
    return builder.compose(["task=plan", "model=tiny", "hardware=cpu", *overrides])


def random_model(config: Any, seed: int = 0) -> Model:
    """A model of a configuration with random weights that keep activations of order one."""
    assembly = assemble(config)
    stage = build_rank(assembly, assembly.place(0), CPU).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*stage.named_parameters(), *stage.named_buffers()):
            if name.endswith("frequencies"):
                continue
            fill_randomly(name, tensor, random, config.model.n_routed_experts)
    return Model(assembly, stage, CPU)


def fill_randomly(name: str, tensor: Tensor, random: torch.Generator, experts: int) -> None:
    """Weights by what they are: norms near one, tables of experts, matrices scaled by their width."""
    if name.endswith("tid2eid"):
        scores = torch.rand(tensor.shape[0], experts, generator=random)
        tensor.copy_(scores.argsort(dim=-1)[:, : tensor.shape[1]])
    elif "norm" in name:
        tensor.copy_(1 + 0.1 * torch.randn(tensor.shape, generator=random))
    elif name.endswith(("hc_attn_scale", "hc_ffn_scale", "hc_head_scale")):
        tensor.copy_(0.5 + torch.rand(tensor.shape, generator=random))
    else:
        wide = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.5
        tensor.copy_(torch.randn(tensor.shape, generator=random) * wide)


def share_target_weights(model: Model, plain: Model) -> None:
    """Random weights are drawn in order of names: copy the target's, so that both are one model."""
    wanted = dict(plain.stage.named_parameters()) | dict(plain.stage.named_buffers())
    with torch.no_grad():
        for name, tensor in (*model.stage.named_parameters(), *model.stage.named_buffers()):
            if name in wanted:
                tensor.copy_(wanted[name])


def run(stage: Stage, cache: Cache, tokens: Iterable[list[int]], slots: Iterable[int]) -> Tensor:
    """Logits of the next tokens of some requests: [tokens of all, vocabulary]."""
    with torch.inference_mode():
        return stage(cached_step(cache, list(tokens), list(slots)))


def random_ids(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Token ids."""
    return torch.randint(0, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
