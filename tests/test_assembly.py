"""What is built is what was declared and planned, on every rank, for configurations drawn at random."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import builder
from builder.assembly.build import build_rank, held_tensors
from builder.assembly.sharding import local_ranges
from builder.assembly.stages import assemble
from builder.components.base.module import TORCH_DTYPES
from builder.components.base.spec import Origin, walk
from builder.errors import ConfigError
from builder.planning.document import plan

META = torch.device("meta")


def bytes_of(module: nn.Module) -> int:
    """By torch's own account, each tensor once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@st.composite
def overrides(draw: st.DrawFn) -> list[str]:
    """Any model, any method it can run, any cut that might work."""
    model = draw(st.sampled_from(["tiny", "tiny", "v4_flash", "v4_pro", "v4_flash_base", "v4_pro_0813"]))
    methods = ["none", "ngram", "draft_model"] + (["dspark"] if model == "v4_pro_0813" else ["mtp", "eagle"])
    method = draw(st.sampled_from(methods))
    tp, dp = draw(st.sampled_from([1, 1, 2, 3, 4, 8])), draw(st.sampled_from([1, 1, 2, 4]))
    chosen = [
        "task=plan",
        f"model={model}",
        f"spec={method}",
        f"pp={draw(st.integers(1, 6))}",
        f"tp={tp}",
        f"dp={dp}",
        f"ep={draw(st.sampled_from([1, 1, 2, tp, dp * tp]))}",
        f"hardware={draw(st.sampled_from(['nvidia', 'amd', 'xpu', 'cpu']))}",
        f"cache={draw(st.sampled_from(['plain', 'fp8', 'fp8_fp4']))}",
        f"runtime.weights={draw(st.sampled_from(['native', 'native', 'bfloat16', 'float32']))}",
        f"runtime.dtype={draw(st.sampled_from(['auto', 'bfloat16', 'float32', 'float64']))}",
        f"runtime.max_num_batched_tokens={draw(st.integers(1, 9000))}",
        f"parallel.partition={draw(st.sampled_from(['auto', 'even']))}",
        f"parallel.shared_expert={draw(st.sampled_from(['sharded', 'replicated']))}",
    ]
    if method == "draft_model":
        chosen.append(f"model@draft={'tiny' if model == 'tiny' else draw(st.sampled_from(['v4_flash', 'v4_pro']))}")
        chosen.append(f"spec.stash={draw(st.sampled_from(['true', 'false']))}")
    if method != "none":
        chosen.append(f"spec.num_speculative_tokens={draw(st.integers(1, 5))}")
    return chosen


def compose(chosen: list[str]) -> Any:
    try:
        return builder.compose(chosen)
    except ConfigError:
        assume(False)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(overrides())
def test_built_modules_have_exactly_the_planned_bytes(chosen: list[str]) -> None:
    config = compose(chosen)
    document = plan(config).to_dict()
    assembly = assemble(config)
    for place, rank in zip(assembly.places(), document["ranks"], strict=True):
        if place.dp:
            continue
        stage = build_rank(assembly, place, META)
        planned = {line: size for line, size in rank["bytes"].items() if line != "activations"}
        assert sum(planned.values()) == bytes_of(stage)
        assert ("mtp_stash" in dict(stage.named_modules())) == (planned["mtp_stash"] > 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(overrides())
def test_the_ranks_together_hold_the_official_files_once(chosen: list[str]) -> None:
    config = compose([*chosen, "runtime.weights=native"])
    document = plan(config).to_dict()
    assembly = assemble(config)
    shares: dict[bool, set[tuple[str, tuple[tuple[int, int], ...], str, int]]] = {True: set(), False: set()}
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for place in assembly.places():
        for one in walk(assembly.stages[place.pp]):
            if one.tensor.origin is Origin.CHECKPOINT:
                ranges = local_ranges(one.tensor, assembly.shards(place))
                shares[one.own_files].add((one.name, ranges, one.tensor.dtype, one.tensor.stacked))
                names[one.own_files].update(one.official_names())
    for own_files, key in ((False, "checkpoint"), (True, "draft_checkpoint")):
        held = sum(
            math.prod(stop - start for start, stop in ranges) * TORCH_DTYPES[dtype].itemsize
            for _, ranges, dtype, _ in shares[own_files]
        )
        expected = document.get(key, {"tensors": 0, "bytes": 0})
        assert (len(names[own_files]), held) == (expected["tensors"], expected["bytes"])


@pytest.mark.parametrize(
    ("model", "method", "size"),
    [
        ("v4_pro", "mtp", 469_762_048),
        ("v4_pro", "eagle", 469_762_048),
        ("v4_pro", "draft_model", 469_762_048),
        ("v4_flash", "mtp", 268_435_456),
        ("v4_flash", "draft_model", 268_435_456),
    ],
)
def test_the_stash_stands_on_the_last_stage_only(model: str, method: str, size: int) -> None:
    config = builder.compose([f"model={model}", f"spec={method}", "pp=3"])
    assert [rank["bytes"]["mtp_stash"] for rank in plan(config).to_dict()["ranks"]] == [0, 0, size]
    stages = [builder.build(config, rank) for rank in range(3)]
    assert [list(names_with_stash(stage)) for stage in stages[:2]] == [[], []]
    last = stages[2]
    assert dict(last.named_buffers())["mtp_stash.rows"].nbytes == size
    layer = last.get_submodule(f"layers.{config.model.num_hidden_layers - 1}")
    assert layer.get_submodule("mix") is last.get_submodule("mtp_stash")


@pytest.mark.parametrize("chosen", [["spec=none"], ["spec=ngram"], ["spec=dspark", "model=v4_flash_0731"]])
def test_without_a_reader_nothing_of_the_stash_is_built(chosen: list[str]) -> None:
    stage = builder.build(builder.compose(chosen))
    assert not list(names_with_stash(stage))


def names_with_stash(stage: nn.Module) -> Iterator[str]:
    """Everything in a module tree that speaks of a stash: names, attributes, classes."""
    for path, module in stage.named_modules():
        words = (path, type(module).__name__, *vars(module), *(name for name, _ in module.named_buffers()))
        yield from (word for word in words if "stash" in word.lower())


def test_a_drafter_shares_the_embedding_only_where_it_stands() -> None:
    alone = builder.build(builder.compose(["model=v4_flash", "spec=mtp"]))
    assert alone.get_submodule("mtp.0.embed") is alone.get_submodule("embed")
    assert alone.get_submodule("mtp.0.head") is alone.get_submodule("head")
    last = builder.build(builder.compose(["model=v4_flash", "spec=mtp", "pp=2", "tp=2"]), 2)
    own = dict(last.named_parameters())["mtp.0.embed.weight"]
    assert own.nbytes == 529_530_880
    assert "embed" not in dict(last.named_children())


def test_parameters_carry_the_official_names() -> None:
    stage = builder.build(builder.compose(["model=v4_flash", "spec=mtp"]))
    names = held_tensors(stage).keys()
    expected = {"embed.weight", "hc_head_fn", "layers.2.attn.wq_a.scale", "layers.2.attn.compressor.ape"}
    expected |= {"layers.0.hc_attn_fn", "layers.0.ffn.gate.tid2eid", "mtp.0.e_proj.weight", "mtp.0.hc_head_base"}
    assert expected <= names
    assert "layers.0.ffn.experts.w1.weight" in names


def test_annotations_of_modules_are_what_they_are_made_of() -> None:
    stages = [
        builder.build(builder.compose(["model=tiny", "spec=mtp"])),
        builder.build(builder.compose(["model=v4_flash_0731", "spec=dspark"])),
    ]
    checked = 0
    for module in (module for stage in stages for module in stage.modules()):
        ours = [cls for cls in type(module).__mro__ if cls.__module__.startswith("builder.")]
        named = {name for cls in ours for name in vars(cls).get("__annotations__", {})}
        held = {*dict(module.named_children()), *dict(module.named_parameters()), *dict(module.named_buffers())}
        assert named <= held, type(module)
        checked += len(named)
    assert checked > 1000


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank=4: there are 4 ranks; use 0 to 3"):
        builder.build(builder.compose(["pp=4"]), 4)
