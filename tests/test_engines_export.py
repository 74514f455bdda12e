"""A configuration as a serve command: what it says, what it warns of, what it refuses."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml
from conftest import Run

from builder.engines.importing import import_command


def test_the_document(run: Run) -> None:
    document = run(
        *["task=export", "hardware.device=h200", "tp=8", "ep=8", "spec=mtp", "cache=fp8_fp4", "output=json"]
    ).document
    assert document["engine"] == "vllm"
    assert document["command"] == shlex.split(
        "vllm serve deepseek-ai/DeepSeek-V4-Pro --trust-remote-code --tensor-parallel-size 8 --enable-expert-parallel "
        '--kv-cache-dtype fp8 --block-size 256 --attention-config \'{"indexer_kv_dtype": "mxfp4"}\' '
        "--max-model-len 131072 --max-num-seqs 64 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.9 "
        '--no-enable-flashinfer-autotune --compilation-config \'{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}\' '
        "--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --reasoning-parser deepseek_v4 "
        '--enable-auto-tool-choice --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''
    )
    assert document["environment"] == {}
    assert shlex.split(document["text"].replace("\\\n", " ")) == document["command"]


def test_the_yaml_says_the_same(run: Run, tmp_path: Any) -> None:
    document = run("task=export", "tp=8", "pp=2", "spec=mtp", "hardware=amd", "output=json").document
    values = yaml.safe_load(document["yaml"])
    assert values["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 1}
    (tmp_path / "serve.yaml").write_text(document["yaml"])
    words = [
        *(f"{name}={value}" for name, value in document["environment"].items()),
        "vllm",
        "serve",
        "--config",
        str(tmp_path / "serve.yaml"),
    ]
    ours = import_command(shlex.join(words)).overrides
    assert ours == import_command(document["text"]).overrides


def test_people_see_a_command_that_a_shell_takes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("task=export", "tp=8", "ep=8", "spec=ngram", "hardware=nvidia").out
    text = shown.partition("\nwarning:")[0].partition("\nnote:")[0]
    assert import_command(text).overrides[:3] == ["model=v4_pro", "tp=8", "ep=8"]
    assert '"custom_ops": ["all"]' in text
    assert run("task=export", "export.what=yaml", "hardware=nvidia").out.startswith("model: deepseek-ai/")


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (
            "tp=4 ep=2",
            "vLLM: ep=2 becomes 4: the expert group is always all dp·tp ranks; plan with ep=4 "
            "(vLLM 0.33.0, expert layers)",
        ),
        (
            "tp=4 dp=2",
            "vLLM: ep=1 with dp=2: every expert is cut over all dp·tp = 8 ranks, builder keeps a copy in each replica; "
            "for copies start one server per replica; for one server plan with ep=8 (vLLM 0.33.0, expert layers)",
        ),
        (
            "tp=8 parallel.shared_expert=replicated",
            "parallel.shared_expert=replicated has no flag: vLLM shards the shared expert and pads it where it does "
            "not divide (vLLM issue 40955)",
        ),
        (
            "model=v4_flash spec=draft_model spec.stash=false",
            "vLLM allocates the MTP buffer on the last stage all the same, 268,435,456 bytes that nobody reads "
            "(vLLM pull request 50312)",
        ),
        (
            "model=v4_pro_0813 spec=dspark",
            "vLLM allocates the MTP buffer on the last stage all the same, 469,762,048 bytes that nobody reads "
            "(vLLM pull request 50312)",
        ),
        (
            "model=v4_flash spec=draft_model",
            "spec=draft_model: no published vLLM recipe drafts DeepSeek-V4 with another model",
        ),
        (
            "pp=4",
            "no published vLLM recipe for DeepSeek-V4 uses pipeline stages (vLLM recipes)",
        ),
        (
            "hardware=amd hardware.device=mi300x tp=8",
            "mi300x: listed as unsupported for V4-Pro (vLLM recipes), although InferenceX runs it with tp=8 "
            "(InferenceX pull request 2194)",
        ),
        (
            "hardware=xpu",
            "Intel XPU: vLLM has the model's code, no recipe is published (vLLM 0.33.0 source)",
        ),
        (
            "hardware.device=h200 runtime.reserve_bytes=15075482009",
            "runtime.reserve_bytes=15075482009 has no flag: --gpu-memory-utilization 0.8000 leaves the same budget",
        ),
        (
            "hardware.device=h200 runtime.graph_bytes=3015096401 runtime.other_bytes=12060385608",
            "runtime.graph_bytes=3015096401, runtime.other_bytes=12060385608 have no flags, 15075482009 bytes in all: "
            "--gpu-memory-utilization 0.8000 leaves the same budget",
        ),
        (
            "runtime.weights=bfloat16",
            "runtime.weights=bfloat16 has no flag: vLLM keeps the weights as stored",
        ),
    ],
)
def test_what_vllm_does_otherwise_is_said(run: Run, line: str, warning: str) -> None:
    document = run("task=export", "output=json", *line.split()).document
    assert warning in document["warnings"]
    assert "warning:" in run("task=export", *line.split()).out


@pytest.mark.parametrize("line", ["pp=4 spec=mtp", "cache=plain"])
def test_rules_of_other_versions_warn_here(run: Run, line: str) -> None:
    result = run("task=export", "output=json", *line.split())
    assert result.code == 0
    assert any(source in warning for warning in result.document["warnings"] for source in ("#52761", "PR #41834"))


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (
            "hardware.device=h200 tp=8",
            "the Marlin runner repacks the FP4 experts: weights grow by about 25 percent (InferenceX issue 2128)",
        ),
        (
            "pp=2 tp=8",
            "no cell of the SGLang cookbook for DeepSeek-V4 uses pipeline stages (SGLang cookbook)",
        ),
        (
            "tp=4 ep=2",
            "ep=2 of 4 ranks: SGLang cuts each expert over the 2 ranks that are left, builder keeps whole experts "
            "(SGLang 0.5.23, expert layers)",
        ),
        (
            "spec=eagle",
            "spec=eagle reads back as spec=mtp: SGLang has one word, EAGLE, for the release's own block "
            "(InferenceX pull request 2305)",
        ),
        (
            "runtime.communication_bytes=7",
            "runtime.communication_bytes=7 has no flag: it must find room beside --mem-fraction-static 0.9",
        ),
        (
            "cache=fp8_fp4",
            "cache=fp8_fp4: SGLang calls its FP4 indexer experimental (SGLang 0.5.23)",
        ),
    ],
)
def test_what_sglang_does_otherwise_is_said(run: Run, line: str, warning: str) -> None:
    assert warning in run("task=export", "export.engine=sglang", "output=json", *line.split()).document["warnings"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "export.engine=sglang spec=ngram",
            "spec=ngram: SGLang takes only EAGLE and DSPARK for DeepSeek-V4 (SGLang 0.5.23, its DeepSeek-V4 defaults); "
            "use spec=mtp, spec=dspark or spec=none",
        ),
        (
            "export.engine=sglang model=v4_pro_0813 spec=dspark pp=2",
            "pp=2: SGLang runs DSpark with one stage only (SGLang 0.5.23, its speculative settings); "
            "use pp=1, or spec=none",
        ),
        (
            "spec=eagle",
            "spec=eagle: vLLM's eagle needs a head with files of its own; use spec=mtp for the release's own block, or "
            "give spec.checkpoint=DIR",
        ),
        ("runtime.dtype=float64", "runtime.dtype=float64: vLLM has no such dtype; use bfloat16 or float32"),
        (
            "export.engine=sglang runtime.dtype=float64",
            "runtime.dtype=float64: SGLang has no such dtype; use bfloat16 or float32",
        ),
        (
            "model=v4_flash tp=4 dp=3 ep=4",
            "ep=4: the expert group is all dp·tp = 12 ranks, and 256 experts do not divide by 12 "
            "(n_physical_experts=256 must be divisible by ep_size=12) (vLLM #52435); use another dp or tp, or 8 "
            "redundant experts: 264 = 12 x 22",
        ),
        (
            "model=tiny",
            "model=tiny: has no name on the hub; give checkpoint=DIR, or use one of v4_pro, v4_flash, v4_pro_base, "
            "v4_flash_base, v4_pro_0813, v4_flash_0731",
        ),
        ("export.engine=atom", "export.engine=atom: is not known; use one of vllm, sglang"),
    ],
)
def test_what_the_engine_would_refuse_is_refused(run: Run, line: str, message: str) -> None:
    result = run("task=export", *line.split())
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


def test_a_checkpoint_folder_stands_for_the_model(run: Run, tmp_path: Any, flash_config: dict[str, Any]) -> None:
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").write_text(json.dumps(flash_config))
    folder = str(tmp_path / "my model")
    document = run("task=export", f"checkpoint={folder}", "output=json").document
    assert document["command"][:3] == ["vllm", "serve", folder]
    assert f"checkpoint={folder}" in import_command(document["text"]).overrides
