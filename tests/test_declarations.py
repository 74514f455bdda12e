"""The declarations are the specification of the official checkpoints: names, shapes, dtypes, totals."""

from collections import Counter

import pytest

import builder
from builder.assembly.stages import official, official_files
from builder.components.base.spec import DTYPE_BYTES, Declared, Origin, walk
from builder.components.rotary.spec import RotarySpec


def declared(*overrides: str) -> dict[str, Declared]:
    """Every official tensor of a configuration, by name; the experts of a layer one by one."""
    found: dict[str, Declared] = {}
    for one in walk(official(builder.compose(["task=plan", *overrides]))):
        if one.tensor.origin is Origin.CHECKPOINT:
            for name in one.official_names():
                assert name not in found
                found[name] = one
    return found


def single_shape(one: Declared) -> tuple[int, ...]:
    return one.tensor.shape[1:] if one.tensor.stacked else one.tensor.shape


def single_bytes(one: Declared) -> int:
    return one.tensor.nbytes // (one.tensor.stacked or 1)


@pytest.mark.parametrize(
    ("model", "spec", "tensors", "size"),
    [
        ("v4_flash", "mtp", 69_187, 159_609_485_896),
        ("v4_pro", "mtp", 145_116, 864_704_792_696),
        ("v4_flash", "none", 67_612, 156_015_698_140),
        ("v4_pro", "none", 142_773, 850_748_205_004),
    ],
)
def test_totals_are_the_published_ones(model: str, spec: str, tensors: int, size: int) -> None:
    files, own = official_files(official(builder.compose(["task=plan", f"model={model}", f"spec={spec}"])))
    assert (files.tensors, files.nbytes, own.tensors) == (tensors, size, 0)


@pytest.mark.parametrize(
    ("model", "duplicates", "predicted"),
    [
        ("v4_flash_base", 2 * 129_280 * 4096 * 2, 294_673_469_000),
        ("v4_pro_base", 2 * 129_280 * 7168 * 2, 1_606_032_540_792),
    ],
)
def test_base_totals_leave_its_two_duplicates_out(model: str, duplicates: int, predicted: int) -> None:
    files, _ = official_files(official(builder.compose(["task=plan", f"model={model}", "spec=mtp"])))
    assert files.nbytes == predicted - duplicates


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "v4_flash",
            {
                "BF16": (433, 2_830_518_528),
                "F32": (417, 144_672_072),
                "F8_E4M3": (375, 6_023_020_544),
                "F8_E8M0": (34_167, 8_858_737_664),
                "I64": (3, 18_616_320),
                "I8": (33_792, 141_733_920_768),
            },
        ),
        (
            "v4_pro",
            {
                "BF16": (619, 5_633_798_656),
                "F32": (590, 351_105_656),
                "F8_E4M3": (528, 23_169_335_296),
                "F8_E8M0": (71_952, 49_150_268_416),
                "I64": (3, 18_616_320),
                "I8": (71_424, 786_381_668_352),
            },
        ),
    ],
)
def test_totals_by_dtype_are_the_published_ones(model: str, expected: dict[str, tuple[int, int]]) -> None:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for one in declared(f"model={model}", "spec=mtp").values():
        counts[one.tensor.dtype] += 1
        sizes[one.tensor.dtype] += single_bytes(one)
    assert {dtype: (counts[dtype], sizes[dtype]) for dtype in counts} == expected


@pytest.mark.parametrize(
    ("model", "layer", "tensors", "size"),
    [
        ("v4_flash", 0, 1565, 3_566_148_952),
        ("v4_flash", 2, 1576, 3_596_055_640),
        ("v4_flash", 3, 1569, 3_568_596_312),
        ("v4_flash", 4, 1576, 3_589_851_224),
        ("v4_pro", 1, 2337, 13_874_466_328),
        ("v4_pro", 2, 2344, 13_909_746_200),
        ("v4_pro", 3, 2337, 13_868_262_424),
        ("v4_pro", 60, 2344, 13_903_542_296),
    ],
)
def test_layers_have_the_published_counts_and_bytes(model: str, layer: int, tensors: int, size: int) -> None:
    found = [one for name, one in declared(f"model={model}").items() if name.startswith(f"layers.{layer}.")]
    assert (len(found), sum(map(single_bytes, found))) == (tensors, size)


# name, Flash shape, Pro shape, dtype: one of every pattern of the official layout
ANCHORS = [
    ("embed.weight", (129280, 4096), (129280, 7168), "BF16"),
    ("head.weight", (129280, 4096), (129280, 7168), "BF16"),
    ("norm.weight", (4096,), (7168,), "BF16"),
    ("hc_head_fn", (4, 16384), (4, 28672), "F32"),
    ("hc_head_base", (4,), (4,), "F32"),
    ("hc_head_scale", (1,), (1,), "F32"),
    ("layers.2.attn.attn_sink", (64,), (128,), "F32"),
    ("layers.2.attn.kv_norm.weight", (512,), (512,), "BF16"),
    ("layers.2.attn.q_norm.weight", (1024,), (1536,), "BF16"),
    ("layers.2.attn.wq_a.weight", (1024, 4096), (1536, 7168), "F8_E4M3"),
    ("layers.2.attn.wq_a.scale", (8, 32), (12, 56), "F8_E8M0"),
    ("layers.2.attn.wq_b.weight", (32768, 1024), (65536, 1536), "F8_E4M3"),
    ("layers.2.attn.wq_b.scale", (256, 8), (512, 12), "F8_E8M0"),
    ("layers.2.attn.wkv.weight", (512, 4096), (512, 7168), "F8_E4M3"),
    ("layers.2.attn.wo_a.weight", (8192, 4096), (16384, 4096), "F8_E4M3"),
    ("layers.2.attn.wo_a.scale", (64, 32), (128, 32), "F8_E8M0"),
    ("layers.2.attn.wo_b.weight", (4096, 8192), (7168, 16384), "F8_E4M3"),
    ("layers.2.attn_norm.weight", (4096,), (7168,), "BF16"),
    ("layers.2.attn.compressor.ape", (4, 1024), (4, 1024), "F32"),
    ("layers.2.attn.compressor.norm.weight", (512,), (512,), "BF16"),
    ("layers.2.attn.compressor.wkv.weight", (1024, 4096), (1024, 7168), "BF16"),
    ("layers.2.attn.compressor.wgate.weight", (1024, 4096), (1024, 7168), "BF16"),
    ("layers.2.attn.indexer.compressor.ape", (4, 256), (4, 256), "F32"),
    ("layers.2.attn.indexer.compressor.norm.weight", (128,), (128,), "BF16"),
    ("layers.2.attn.indexer.compressor.wkv.weight", (256, 4096), (256, 7168), "BF16"),
    ("layers.2.attn.indexer.weights_proj.weight", (64, 4096), (64, 7168), "BF16"),
    ("layers.2.attn.indexer.wq_b.weight", (8192, 1024), (8192, 1536), "F8_E4M3"),
    ("layers.2.ffn.gate.weight", (256, 4096), (384, 7168), "BF16"),
    ("layers.2.ffn.gate.tid2eid", (129280, 6), (129280, 6), "I64"),
    ("layers.2.ffn.experts.0.w1.weight", (2048, 2048), (3072, 3584), "I8"),
    ("layers.2.ffn.experts.255.w1.scale", (2048, 128), (3072, 224), "F8_E8M0"),
    ("layers.2.ffn.experts.7.w2.weight", (4096, 1024), (7168, 1536), "I8"),
    ("layers.2.ffn.experts.7.w2.scale", (4096, 64), (7168, 96), "F8_E8M0"),
    ("layers.2.ffn.shared_experts.w2.weight", (4096, 2048), (7168, 3072), "F8_E4M3"),
    ("layers.2.ffn.shared_experts.w2.scale", (32, 16), (56, 24), "F8_E8M0"),
    ("layers.2.hc_attn_fn", (24, 16384), (24, 28672), "F32"),
    ("layers.2.hc_ffn_base", (24,), (24,), "F32"),
    ("layers.2.hc_ffn_scale", (3,), (3,), "F32"),
    ("layers.3.attn.compressor.ape", (128, 512), (128, 512), "F32"),
    ("layers.3.attn.compressor.wkv.weight", (512, 4096), (512, 7168), "BF16"),
    ("layers.3.ffn.gate.bias", (256,), (384,), "F32"),
    ("mtp.0.e_proj.weight", (4096, 4096), (7168, 7168), "F8_E4M3"),
    ("mtp.0.h_proj.scale", (32, 32), (56, 56), "F8_E8M0"),
    ("mtp.0.enorm.weight", (4096,), (7168,), "BF16"),
    ("mtp.0.norm.weight", (4096,), (7168,), "BF16"),
    ("mtp.0.hc_head_fn", (4, 16384), (4, 28672), "F32"),
    ("mtp.0.ffn.gate.bias", (256,), (384,), "F32"),
]


@pytest.mark.parametrize(("model", "column"), [("v4_flash", 1), ("v4_pro", 2)])
def test_every_pattern_has_its_published_shape_and_dtype(model: str, column: int) -> None:
    found = declared(f"model={model}", "spec=mtp")
    wrong = {
        row[0]: (single_shape(found[row[0]]), found[row[0]].tensor.dtype)
        for row in ANCHORS
        if (single_shape(found[row[0]]), found[row[0]].tensor.dtype) != (row[column], row[3])
    }
    assert not wrong


def test_what_a_layer_kind_does_not_have_is_not_declared() -> None:
    flash = declared("model=v4_flash", "spec=mtp")
    assert not [name for name in flash if name.startswith(("layers.0.attn.compressor", "mtp.0.attn.compressor"))]
    assert not [name for name in flash if name.startswith("layers.3.attn.indexer")]
    assert "layers.2.ffn.gate.bias" not in flash
    assert "layers.3.ffn.gate.tid2eid" not in flash
    assert not [name for name in flash if "emb" in name and name.startswith("mtp")]


def test_base_stores_its_experts_in_fp8_and_its_scales_in_float32() -> None:
    base = declared("model=v4_flash_base")
    weight, scale = base["layers.5.ffn.experts.3.w1.weight"], base["layers.5.ffn.experts.3.w1.scale"]
    assert (single_shape(weight), weight.tensor.dtype) == ((2048, 4096), "F8_E4M3")
    assert (single_shape(scale), scale.tensor.dtype) == ((16, 32), "F32")
    assert base["layers.5.attn.wkv.scale"].tensor.dtype == "F32"


@pytest.mark.parametrize(("model", "hidden", "rank"), [("v4_flash_0731", 4096, 256), ("v4_pro_0813", 7168, 512)])
def test_dspark_releases_hold_three_blocks_and_their_heads(model: str, hidden: int, rank: int) -> None:
    found = declared(f"model={model}", "spec=dspark")
    shapes = {
        "mtp.0.main_proj.weight": (hidden, 3 * hidden),
        "mtp.0.main_norm.weight": (hidden,),
        "mtp.2.norm.weight": (hidden,),
        "mtp.2.hc_head_fn": (4, 4 * hidden),
        "mtp.2.markov_head.markov_w1.weight": (129280, rank),
        "mtp.2.markov_head.markov_w2.weight": (129280, rank),
        "mtp.2.confidence_head.proj.weight": (1, hidden + rank),
        "mtp.1.ffn.gate.bias": (found["mtp.1.ffn.gate.weight"].tensor.shape[0],),
    }
    assert {name: single_shape(found[name]) for name in shapes} == shapes
    absent = ("e_proj", "h_proj", "enorm", "hnorm", "mtp.1.norm", "mtp.0.norm", "mtp.1.main_proj", "mtp.0.hc_head")
    assert not [name for name in found if name.startswith("mtp.") and any(word in name for word in absent)]


def test_flash_0731_drafter_has_the_published_number_of_tensors() -> None:
    # 4,705 mtp.* tensors: vLLM PR #41834, comment of 2026-08-01
    names = [name for name in declared("model=v4_flash_0731", "spec=dspark") if name.startswith("mtp.")]
    assert len(names) == 4_705


def test_yarn_frequencies_have_the_published_values() -> None:
    rotary = RotarySpec.of(builder.compose(["task=plan"]).model, compressed=True, dtype="F32")
    expected = {0: 1.0, 15: 3.63553858e-3, 16: 2.265625e-3, 20: 2.96977778e-4, 24: 1.953125e-5, 31: 5.68052904e-7}
    assert {i: rotary.frequencies()[i] for i in expected} == pytest.approx(expected, rel=2e-8)


def test_layers_without_a_compressor_rotate_plainly() -> None:
    rotary = RotarySpec.of(builder.compose(["task=plan"]).model, compressed=False, dtype="F32")
    assert rotary.frequencies() == pytest.approx([10000 ** (-i / 32) for i in range(32)])


def test_dtype_sizes_are_those_of_torch() -> None:
    from builder.components.base.module import TORCH_DTYPES

    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == DTYPE_BYTES
