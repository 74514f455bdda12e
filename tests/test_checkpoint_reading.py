"""Checkpoints in: every layout, every cut, the same values that the safetensors library reads, and no byte too many."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import DATA, FLASH, FP4, composed, config_of, copy_of, raw, stage_for, tensors_of, write

import builder
from builder.assembly.stages import assemble
from builder.checkpoint import progress
from builder.checkpoint.folder import open_folder
from builder.checkpoint.names import LAYOUTS, OFFICIAL, recognise, split
from builder.checkpoint.reading import load
from builder.components.base.spec import Origin, walk
from builder.components.stage.module import Stage
from builder.errors import CheckpointError
from builder.kernels.reference.quantization import dequantize, quantize_fp8

BOTH = pytest.mark.parametrize("folder", [FLASH, FP4], ids=lambda folder: folder.name)


def official_values(stage: Stage) -> dict[str, torch.Tensor]:
    """What an unsplit stage holds, under official names."""
    held = dict(stage.named_parameters()) | dict(stage.named_buffers())
    found: dict[str, torch.Tensor] = {}
    for one in walk(stage.spec):
        if one.tensor.origin is Origin.CHECKPOINT:
            names, tensor = list(one.official_names()), held[one.path].detach()
            found.update(zip(names, tensor if one.tensor.stacked else [tensor], strict=True))
    return found


def dequantized(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Plain F32 values of official tensors, without their scales."""
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        scale = tensors.get(f"{name.removesuffix('weight')}scale")
        if not name.endswith(".scale"):
            quantized = scale is not None and name.endswith("weight")
            plain[name] = dequantize(tensor, scale) if quantized and scale is not None else tensor
    return plain


@BOTH
def test_native_weights_are_those_of_the_files(folder: Path) -> None:
    stage = stage_for(folder, "spec=mtp")
    report = load(stage, folder)
    expected, found = tensors_of(folder), official_values(stage)
    assert found.keys() == expected.keys() == set(report.loaded)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(raw(found[name]), raw(tensor)), name
    assert (report.missing, report.unexpected) == ((), ())
    assert report.bytes_read == open_folder(folder).nbytes == sum(tensor.nbytes for tensor in expected.values())
    assert not any(tensor.is_meta for tensor in [*stage.parameters(), *stage.buffers()])


@BOTH
@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
def test_weights_are_dequantized_once(folder: Path, weights: str) -> None:
    stage = stage_for(folder, "spec=mtp", f"runtime.weights={weights}")
    load(stage, folder)
    found = official_values(stage)
    expected = dequantized(tensors_of(folder))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.to(found[name].dtype)), name
    kept = ("hc_attn_fn", "attn.attn_sink", "attn.compressor.ape", "gate.bias")
    dtypes = Counter(tensor.dtype for name, tensor in found.items() if name.endswith(kept))
    assert set(dtypes) == {torch.float32}
    assert found["embed.weight"].dtype == getattr(torch, weights)


@BOTH
def test_memory_that_is_there_is_filled_in_place(folder: Path) -> None:
    stage, other = stage_for(folder, "spec=mtp", device="cpu"), stage_for(folder, "spec=mtp")
    before = {name: tensor.data_ptr() for name, tensor in stage.named_parameters()}
    load(stage, folder)
    load(other, folder)
    assert before == {name: tensor.data_ptr() for name, tensor in stage.named_parameters()}
    for (name, one), (_, two) in zip(stage.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(raw(one), raw(two)), name
    derived = [dict(one.named_buffers())["layers.2.attn.rotary.frequencies"] for one in (stage, other)]
    assert torch.equal(*derived)


def test_without_a_drafter_its_bytes_are_not_read() -> None:
    stage = stage_for(FLASH)
    report = load(stage, FLASH)
    drafter = sum(tensor.nbytes for name, tensor in tensors_of(FLASH).items() if name.startswith("mtp."))
    assert report.bytes_read == open_folder(FLASH).nbytes - drafter


CUTS: list[tuple[Path, list[str]]] = [
    (FLASH, ["tp=4"]),
    (FLASH, ["pp=4", "spec=mtp"]),
    (FLASH, ["pp=2", "tp=2", "ep=2", "spec=mtp"]),
    (FLASH, ["tp=2", "dp=2", "ep=4", "parallel.shared_expert=replicated"]),
    (FP4, ["pp=2", "dp=2", "ep=2", "spec=mtp"]),
    (FP4, ["tp=2", "pp=2", "runtime.weights=float32", "spec=mtp"]),
    (FP4, ["tp=2", "dp=2", "ep=4", "runtime.weights=bfloat16"]),
]


@pytest.mark.parametrize(
    ("folder", "words"), CUTS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_each_rank_holds_its_share(folder: Path, words: list[str]) -> None:
    whole = stage_for(
        folder, *(word for word in words if word[:2] not in ("tp", "pp", "dp", "ep") and "parallel" not in word)
    )
    load(whole, folder)
    expected = dict(whole.named_parameters()) | dict(whole.named_buffers())
    for rank in range(4):
        stage = stage_for(folder, *words, rank=rank)
        load(stage, folder)
        held = dict(stage.named_parameters()) | dict(stage.named_buffers())
        for one in walk(stage.spec):
            if one.tensor.origin is Origin.CHECKPOINT:
                share = tuple(slice(*span) for span in stage.share_of(one.tensor))
                source = expected["embed.weight" if one.tensor.source else one.path]
                assert torch.equal(raw(held[one.path]), raw(source[share])), (rank, one.path)


@pytest.mark.parametrize(
    ("folder", "words"), CUTS[:5], ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_four_ranks_read_the_files_once_and_what_is_replicated(folder: Path, words: list[str]) -> None:
    config = composed(folder, *words)
    read = sum(load(builder.build(config, rank), folder).bytes_read for rank in range(4))
    holders: Counter[tuple[str, Any]] = Counter()
    sizes: dict[tuple[str, Any], int] = {}
    for rank in range(4):
        stage = builder.build(config, rank)
        for one in walk(stage.spec):
            if one.tensor.origin is Origin.CHECKPOINT:
                key = (one.name, stage.share_of(one.tensor))
                holders[key] += 1
                held = (dict(stage.named_parameters()) | dict(stage.named_buffers()))[one.path]
                sizes[key] = held.nbytes
    replicated = sum((count - 1) * sizes[key] for key, count in holders.items())
    drafter = sum(tensor.nbytes for name, tensor in tensors_of(folder).items() if name.startswith("mtp."))
    files = open_folder(folder).nbytes - (0 if "spec=mtp" in words else drafter)
    assert read == files + replicated
    if words == ["pp=4", "spec=mtp"]:
        assert replicated == tensors_of(folder)["embed.weight"].nbytes


def test_every_declared_name_is_in_the_table_once() -> None:
    chosen = [["model=v4_flash", "spec=mtp"], ["model=v4_pro_0813", "spec=dspark"], ["model=v4_pro_base", "spec=mtp"]]
    for words in chosen:
        for one in walk(assemble(builder.compose(words)).files[0]):
            if one.tensor.origin is Origin.CHECKPOINT:
                name = next(one.official_names())
                known = OFFICIAL.find(name)
                assert known is not None, name
                assert OFFICIAL.official_name(known) == name
                for layout in LAYOUTS[1:]:
                    if not name.endswith(".scale") and not (layout.fused and ".experts." in name):
                        spelled = layout.spelled(name)
                        again = layout.find(spelled)
                        assert again is not None
                        assert layout.official_name(again) == name


@pytest.mark.parametrize(
    "name",
    [
        "layers.#.attn.wq_a.weight",
        "layers.00.attn.wq_a.weight",
        "xembed.weight",
        "layers.1.attn.wq_a.weight.x",
        "mtp.0.attn.compressor.ape",
        "layers.-1.attn_norm.weight",
        "layers.١.attn_norm.weight",
    ],
)
def test_names_match_as_a_whole_or_not_at_all(name: str) -> None:
    assert [layout.find(name) for layout in LAYOUTS] == [None, None, None]


def test_numbers_are_told_from_names() -> None:
    assert split("layers.12.ffn.experts.3.w1.weight").numbers == (12, 3)


# --- Base


def as_base(folder: Path) -> Path:
    """tiny-fp4 the way Base releases are: FP8 experts, F32 scales, two copies in the drafter."""
    tensors = tensors_of(FP4)
    for name in [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]:
        scale = f"{name.removesuffix('weight')}scale"
        tensors[name], tensors[scale] = quantize_fp8(dequantize(tensors[name], tensors[scale]), torch.float32)
    tensors = {name: t.float() if t.dtype == torch.float8_e8m0fnu else t for name, t in tensors.items()}
    tensors["mtp.0.emb.tok_emb.weight"] = tensors["embed.weight"].clone()
    tensors["mtp.0.head.weight"] = tensors["head.weight"].clone()
    return write(folder, config_of(FP4) | {"expert_dtype": "fp8"}, tensors)


def test_base_files(tmp_path: Path) -> None:
    folder = as_base(tmp_path / "base")
    tensors = tensors_of(folder)
    for words in (["spec=none"], ["spec=mtp"], ["spec=mtp", "runtime.weights=float32"]):
        stage = stage_for(folder, *words)
        report = load(stage, folder)
        assert not any("emb" in name.split(".")[2:3] or name == "mtp.0.head.weight" for name in report.loaded)
        if words[-1] == "spec=mtp":
            copies = sum(tensors[name].nbytes for name in ("embed.weight", "head.weight"))
            assert report.bytes_read == open_folder(folder).nbytes - copies
    found, expected = official_values(stage), dequantized(tensors)
    assert all(torch.equal(tensor, expected[name].to(tensor.dtype)) for name, tensor in found.items())


def test_tables_of_experts_may_be_narrow(tmp_path: Path) -> None:
    tensors = {name: t.int() if "tid2eid" in name else t for name, t in tensors_of(FLASH).items()}
    folder = write(tmp_path / "narrow", config_of(FLASH), tensors)
    stage = stage_for(folder)
    load(stage, folder)
    assert torch.equal(
        official_values(stage)["layers.0.ffn.gate.tid2eid"], tensors_of(FLASH)["layers.0.ffn.gate.tid2eid"]
    )


def test_plain_files_of_another_precision_on_request(tmp_path: Path) -> None:
    tensors = {
        n: t.bfloat16()
        if t.dtype == torch.float32 and "hc_" not in n and not n.endswith(("ape", "attn_sink", "bias"))
        else t
        for n, t in tensors_of(FLASH).items()
    }
    folder = write(tmp_path / "bf16", config_of(FLASH), tensors)
    with pytest.raises(CheckpointError, match=r"expected F32 .*, found BF16 .*; runtime.weights=bfloat16 takes plain"):
        load(stage_for(folder, "spec=mtp"), folder)
    stage = stage_for(folder, "spec=mtp", "runtime.weights=float32")
    load(stage, folder)
    assert all(torch.equal(value, tensors[name].to(value.dtype)) for name, value in official_values(stage).items())


# --- transformers


def random_config(seed: int) -> Any:
    """A small configuration of transformers' own."""
    from transformers import DeepseekV4Config

    draw = torch.Generator().manual_seed(seed)

    def one_of(*values: int) -> int:
        return values[int(torch.randint(len(values), (1,), generator=draw))]

    layers, heads = one_of(2, 3, 5), one_of(4, 8)
    values: dict[str, Any] = dict(  # noqa: C408
        vocab_size=one_of(97, 128), hidden_size=one_of(32, 48), moe_intermediate_size=one_of(16, 24),
        num_hidden_layers=layers, num_attention_heads=heads, head_dim=32, q_lora_rank=one_of(16, 24),
        num_experts_per_tok=2, n_routed_experts=one_of(4, 6), max_position_embeddings=256,
        compress_ratios=[one_of(0, 4, 128) for _ in range(layers)], num_hash_layers=one_of(0, 1, 2),
        qk_rope_head_dim=16, sliding_window=16, o_groups=one_of(2, 4), o_lora_rank=8, index_n_heads=16,
        index_head_dim=16, index_topk=4, num_nextn_predict_layers=1, hc_mult=one_of(2, 4),
    )  # fmt: skip
    return DeepseekV4Config(**values)


@pytest.fixture(scope="module", params=[0, 1, 2])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A random model saved by transformers: both layouts, F32 and BF16, and its own tensors."""
    from transformers import DeepseekV4ForCausalLM

    torch.manual_seed(request.param)
    model = DeepseekV4ForCausalLM(random_config(request.param))
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            buffer.random_(0, model.config.n_routed_experts)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    folder = tmp_path_factory.mktemp("transformers")
    held = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for dtype in (torch.float32, torch.bfloat16):
        torch.nn.Module.to(model, dtype)
        model.config.dtype = dtype
        for path, parameter in model.named_parameters():
            # As from_pretrained leaves them; the bias of the router, a buffer here, stays in the model's dtype.
            if any(word in path for word in ("_hc.", "hc_head", "sinks", "position_bias", "norm")):
                parameter.data = held[path]
        word = str(dtype).removeprefix("torch.")
        model.save_pretrained(folder / f"default-{word}")
        model.save_pretrained(folder / f"fused-{word}", save_original_format=False, max_shard_size="100KB")
    return folder, held


@pytest.mark.parametrize("kind", ["default-float32", "fused-float32", "default-bfloat16", "fused-bfloat16"])
def test_both_layouts_of_transformers(saved: tuple[Path, dict[str, torch.Tensor]], kind: str) -> None:
    folder, held = saved[0] / kind, saved[1]
    stage = stage_for(folder)
    report = load(stage, folder)
    assert report.bytes_read == open_folder(folder).nbytes
    layout = LAYOUTS[2]
    for name, value in official_values(stage).items():
        words = name.split(".")
        if ".experts." in name:
            number, matrix = int(words[4]), words[5]
            inner = value.shape[1 if matrix == "w2" else 0]
            stacked = held[f"model.layers.{words[1]}.mlp.experts.{'down_proj' if matrix == 'w2' else 'gate_up_proj'}"][
                number
            ]
            expected = stacked if matrix == "w2" else stacked[inner:] if matrix == "w3" else stacked[:inner]
        else:
            expected = held[layout.spelled(name)]
        assert torch.equal(value, expected.to(value.dtype)), name


@pytest.mark.parametrize("kind", ["default-float32", "fused-float32"])
def test_transformers_files_hold_no_mtp(saved: tuple[Path, dict[str, torch.Tensor]], kind: str) -> None:
    folder = saved[0] / kind
    with pytest.raises(CheckpointError, match=r"mtp\.0.*expected an MTP block, found the transformers.* layout"):
        load(stage_for(folder, "spec=mtp"), folder)


def test_fused_experts_are_cut_like_stacked_ones(saved: tuple[Path, dict[str, torch.Tensor]]) -> None:
    for words in (["tp=2"], ["tp=2", "ep=2"]):
        for rank in range(2):
            one, two = (stage_for(saved[0] / f"{kind}-float32", *words, rank=rank) for kind in ("default", "fused"))
            reports = load(one, saved[0] / "default-float32"), load(two, saved[0] / "fused-float32")
            assert reports[0] == reports[1]
            for (name, left), (_, right) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
                assert torch.equal(left, right), name


def test_quantized_stages_do_not_take_plain_transformers_files(
    tmp_path: Path, saved: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    folder = copy_of(saved[0] / "fused-float32", tmp_path / "fused")
    stage = stage_for(FP4)
    with pytest.raises(
        CheckpointError, match=r"expected F8_E4M3 as config.json says, found the transformers fused layout"
    ):
        load(stage, folder)


# --- the rest


def test_layouts_are_recognised() -> None:
    names = [
        ["embed.weight", "layers.0.attn_norm.weight"],
        ["model.layers.0.attn_norm.weight", "head.weight"],
        ["lm_head.weight", "model.norm.weight"],
        ["x"],
    ]
    assert [recognise(each).name for each in names] == ["official", "transformers", "transformers_fused", "official"]


def test_links_are_followed(tmp_path: Path) -> None:
    copy_of(FP4, tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for number, file in enumerate(sorted((tmp_path / "blobs").iterdir())):
        blob = file.rename(tmp_path / "blobs" / f"blob{number}")
        (tmp_path / "snapshot" / file.name).symlink_to(Path("../blobs") / blob.name)
    stage = stage_for(tmp_path / "snapshot", "spec=mtp")
    assert load(stage, tmp_path / "snapshot").bytes_read == open_folder(FP4).nbytes


def test_a_head_of_its_own(tmp_path: Path) -> None:
    tensors = tensors_of(FLASH)
    target = write(
        tmp_path / "target", config_of(FLASH), {n: t for n, t in tensors.items() if not n.startswith("mtp.")}
    )
    head = write(tmp_path / "head", config_of(FLASH), {n: t for n, t in tensors.items() if n.startswith("mtp.")})
    stage = stage_for(target, "spec=eagle", f"spec.checkpoint={head}")
    with pytest.raises(CheckpointError, match=r"give spec\.checkpoint=DIR"):
        load(stage, target)
    load(stage, target, own_folder=head)
    whole = stage_for(FLASH, "spec=mtp")
    load(whole, FLASH)
    assert all(torch.equal(one, two) for one, two in zip(stage.parameters(), whole.parameters(), strict=True))


def test_a_draft_model_comes_from_its_own_folder() -> None:
    stage = stage_for(
        FLASH, "spec=draft_model", "model@draft=custom", f"spec.checkpoint={FP4}", f"draft.config={FP4}/config.json"
    )
    load(stage, FLASH, own_folder=FP4)
    found = tensors_of(FP4)
    held = dict(stage.named_parameters())
    assert torch.equal(held["draft.embed.weight"], found["embed.weight"])
    assert torch.equal(
        raw(held["draft.layers.1.ffn.experts.w2.weight"][3]), raw(found["layers.1.ffn.experts.3.w2.weight"])
    )


MEMORY = """
import resource, sys, torch
torch.set_num_threads(1)
import builder
from builder.checkpoint.reading import load
folder, weights = sys.argv[1:]
config = builder.compose(["hardware=cpu", f"checkpoint={folder}", f"runtime.weights={weights}"])
stage = builder.build(config)
torch.zeros(1 << 20).float().bfloat16()
sizes = [p.numel() * p.element_size() for p in stage.parameters()]
now = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
limit = now + sum(sizes) + max(sizes) + (16 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
load(stage, folder)
print(sum(sizes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
@pytest.mark.parametrize("weights", ["native", "bfloat16"])
def test_memory_stays_at_the_stage_and_one_tensor(tmp_path: Path, weights: str) -> None:
    config = config_of(FLASH) | {"vocab_size": 60_000, "hidden_size": 256, "num_nextn_predict_layers": 0}
    config["compress_ratios"] = [0, 0, 4, 128, 4, 128]
    write(tmp_path, config, {})
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for one in walk(stage_for(tmp_path).spec):
        if one.tensor.origin is Origin.CHECKPOINT:
            shape = one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape
            for name in one.official_names():
                table = one.tensor.dtype == "I64"
                tensors[name] = (
                    torch.zeros(shape, dtype=torch.int64) if table else torch.rand(shape, generator=generator)
                )
    write(tmp_path, config, tensors)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), weights],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=DATA.parent.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60_000_000


def test_long_loads_in_front_of_somebody_show_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(stage_for(FLASH), FLASH)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "_FEWEST_BYTES", 1000)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load(stage_for(FLASH), FLASH)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loading" in captured.err
