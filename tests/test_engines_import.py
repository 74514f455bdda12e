"""Serve commands, published ones and broken ones, read into configurations."""

from __future__ import annotations

import shlex

import pytest
from conftest import Run
from recipes import FLASH, PRO, RECIPES, SGLANG

from builder import compose
from builder.engines.command import EXPERTS
from builder.engines.importing import import_command
from builder.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "VLLM_PP_LAYER_PARTITION=a,b vllm serve x -pp 2",
            "VLLM_PP_LAYER_PARTITION=a,b: is no list of layer counts; write 16,15,15,15",
        ),
        ("vllm serve x --attention-config '[1]'", "--attention-config=[1]: holds no JSON object; write '{…}'"),
        (
            """vllm serve x --speculative-config '{"method": "mtp", "num_speculative_tokens": -1}'""",
            "num_speculative_tokens=-1: is no number of drafts; use at least 1",
        ),
    ],
)
def test_what_no_engine_would_take_is_refused(run: Run, command: str, message: str) -> None:
    result = run("task=import", f"command={command}")
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


@pytest.mark.parametrize("name", RECIPES)
def test_a_published_recipe(name: str) -> None:
    command, expected = RECIPES[name]
    found = import_command(command)
    assert found.unknown == []
    config, default = compose(found.overrides), compose([])
    runtime, parallel = config.runtime, config.parallel
    *head, length, seqs, tokens, fraction = expected
    parts = (config.model.name, parallel.pp, parallel.tp, parallel.ep, parallel.dp)
    assert (*parts, config.spec.method, config.spec.drafts, config.cache.layout) == tuple(head)
    assert (runtime.max_model_len, runtime.memory_fraction) == (length, fraction)
    assert runtime.max_num_seqs == (seqs or default.runtime.max_num_seqs)
    assert runtime.max_num_batched_tokens == (tokens or default.runtime.max_num_batched_tokens)
    replicated = "SGLANG_SHARED_EXPERT_TP1" in command
    assert parallel.shared_expert == ("replicated" if replicated else "sharded")
    # Nothing is lost without a word: what was written is understood, ignored, not carried or unknown.
    written = {word.partition("=")[0].partition(".")[0] for word in shlex.split(command) if word.startswith("--")}
    assert len(written) <= len(found.understood) + len(found.ignored) + len(found.not_carried)


def test_the_document(run: Run) -> None:
    command = (
        f"SGLANG_SHARED_EXPERT_TP1=1 {SGLANG} {PRO} --tp 16 --moe-runner-backend=marlin --max-running-requests 32 "
        "--frobnicate 3 --host 0.0.0.0"
    )
    document = run("task=import", f"command={command}", "output=json").document
    assert document["engine"] == "sglang"
    assert document["overrides"] == [
        "model=v4_pro",
        "tp=16",
        "parallel.shared_expert=replicated",
        "cache=fp8",
        "runtime.max_model_len=1048576",
        "runtime.max_num_seqs=32",
    ]
    assert document["understood"] == ["--model-path", "--tp-size", "--max-running-requests"]
    assert document["ignored"] == ["--trust-remote-code", "--moe-runner-backend", "--host"]
    assert document["unknown"] == ["--frobnicate 3"]
    assert document["environment"] == {"SGLANG_SHARED_EXPERT_TP1": "1"}
    assert document["warnings"] == ["--frobnicate is no flag of SGLang 0.5.23: nothing was made of it"]
    assert document["line"] == "python -m builder " + " ".join(document["overrides"])


def test_people_see_the_line_and_what_was_left_out(run: Run) -> None:
    shown = " ".join(run("task=import", f"command=vllm serve {FLASH} -tp 2 --frobnicate").out.split())
    assert shown.startswith("python -m builder model=v4_flash tp=2 cache=fp8 runtime.max_model_len=1048576")
    assert "warning: --frobnicate is no flag of vLLM 0.33.0: nothing was made of it" in shown


@pytest.mark.parametrize(
    ("flags", "overrides"),
    [
        ("-tp 4 -pp=2", ["pp=2", "tp=4"]),
        ("--tensor_parallel_size=4", ["tp=4"]),
        ("--max-model-len 1k --max-num-seqs 2K", ["runtime.max_model_len=1000", "runtime.max_num_seqs=2048"]),
        ("--device-memory-utilization 0.5", ["runtime.memory_fraction=0.5"]),
        ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 2", ["spec=mtp"]),
        ('-sc \'{"method": "mtp"}\' --max-num-seqs 7', ["spec=mtp", "runtime.max_num_seqs=7"]),
        ("--spec-method ngram --spec-tokens 5", ["spec=ngram", "spec.num_speculative_tokens=5"]),
        ("--kv-cache-dtype bfloat16 --dtype float32", ["cache=plain", "runtime.dtype=float32"]),
        ("-cc '{\"mode\": 0}' \\\n  --seed 3", ["cache=fp8"]),
        ("-dp 4", ["dp=4", "ep=4"]),
    ],
)
def test_the_ways_vllm_writes_a_flag(flags: str, overrides: list[str]) -> None:
    found = import_command(f"python3 -m vllm.entrypoints.openai.api_server --model {FLASH} {flags}")
    assert found.unknown == []
    assert set(overrides) <= set(found.overrides)


@pytest.mark.parametrize(
    ("command", "warning"),
    [
        (
            f"vllm serve {FLASH} -dp 4",
            "without --enable-expert-parallel vLLM cuts every expert over all dp·tp = 4 ranks: ep=4 has the same bytes "
            "per rank, and whole experts",
        ),
        (
            f"vllm serve {FLASH} --attention_config.use_fp4_indexer_cache=True",
            "use_fp4_indexer_cache is of older versions, and vLLM 0.33.0 stops at it: it has indexer_kv_dtype=mxfp4 or "
            "fp8",
        ),
        ("vllm serve $MODEL", "$MODEL is no release that builder knows: add model= or checkpoint="),
        ("vllm serve --max-num-seqs 3", "the command names no model: add model= or checkpoint="),
        (
            "vllm serve nvidia/DeepSeek-V4-Pro-NVFP4",
            "nvidia/DeepSeek-V4-Pro-NVFP4 is taken for model=v4_pro by its name: other weights have other bytes",
        ),
        (
            f"vllm serve {FLASH} --spec-method suffix",
            "speculative method suffix is not in builder: spec=none is planned",
        ),
        (
            f"vllm serve {FLASH} --kv-cache-memory-bytes 5",
            "--kv-cache-memory-bytes 5 fixes the cache in vLLM; builder plans by the fraction",
        ),
        (
            f"{SGLANG} {FLASH} --speculative-algorithm NEXTN",
            "NEXTN is the word of DeepSeek-V3: SGLang needs EAGLE for V4, and the decode server stops otherwise "
            "(InferenceX pull request 2305)",
        ),
        (
            f"{SGLANG} {FLASH} --tp 8 --dp 8 --enable-dp-attention",
            "data-parallel attention without ep: SGLang cuts every expert over all 8 ranks; ep=8 has the same bytes "
            "per rank, and whole experts",
        ),
        (
            f"vllm serve {FLASH} --max-num-seq 3",
            "--max-num-seq is no flag of vLLM 0.33.0: nothing was made of it",
        ),
    ],
)
def test_what_is_not_carried_over_is_said(command: str, warning: str) -> None:
    assert warning in import_command(command).warnings


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "command=: is empty; give a value, or leave the key out"),
        (
            "python serve.py --tp 2",
            "command=python serve.py --tp 2: starts with python, which is no engine; give one command: vllm serve … or "
            "sglang serve … (or python -m of either)",
        ),
        (
            "A=1",
            "command=A=1: holds no command; give one command: vllm serve … or sglang serve … (or python -m of either)",
        ),
        (
            "vllm serve X && echo done",
            "command=vllm serve X && echo done: holds &&, which is the shell's; leave the shell's words out",
        ),
        ("vllm serve 'X", "command=vllm serve 'X: cannot be read (no closing quotation); close every quote"),
        (
            "vllm serve X --max-num-seqs",
            "command=vllm serve X --max-num-seqs: --max-num-seqs has no value; write --max-num-seqs VALUE",
        ),
        ("vllm serve X -tp four", "--tensor-parallel-size=four: is no number that vLLM takes; use at least 1"),
        ("sglang serve --tp 0", "--tp-size=0: is no number that SGLang takes; use at least 1"),
        (
            "vllm serve X --gpu-memory-utilization 90",
            "--gpu-memory-utilization=90: is no share; use more than 0 and at most 1",
        ),
        (
            "vllm serve X --speculative-config mtp",
            "--speculative-config=mtp: holds no JSON object; write --speculative-config '{…}'",
        ),
        (
            "vllm serve X --config /nope.yaml",
            "--config=/nope.yaml: cannot be read as YAML; give the file where the command can be read, or its flags",
        ),
        (
            "sglang serve --enable-dp-attention=1",
            "command=sglang serve --enable-dp-attention=1: --enable-dp-attention takes no value; "
            "write --enable-dp-attention",
        ),
    ],
)
def test_a_command_that_cannot_be_read(run: Run, command: str, message: str) -> None:
    result = run("task=import", f"command={command}")
    assert (result.code, result.out, result.err) == (2, "", f"builder: {message}\n")


def test_import_without_a_command(run: Run) -> None:
    works = "give command='vllm serve …' or command='sglang serve …'"
    assert run("task=import").err == f"builder: command: task=import reads a command; {works}\n"


def test_broken_json_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="-cc holds no JSON"):
        import_command("vllm serve X -cc '{mode: 0}'")


CHANGES_BYTES = [
    ("vllm", "-dcp 2", "decode-context-parallel-size", "divides the cache of a request among 2 ranks"),
    ("vllm", "--prefill-context-parallel-size 2", "prefill-context-parallel-size", "runs on 2 times the ranks"),
    ("vllm", "--cpu-offload-gb 10", "cpu-offload-gb", "keeps 10 GiB of a rank's weights in the host's memory"),
    ("vllm", "--hf-overrides '{\"num_hidden_layers\": 2}'", "hf-overrides", "config.json (num_hidden_layers)"),
    ("vllm", "--quantization mxfp4", "quantization", "stores the weights as mxfp4"),
    ("vllm", "--enable-eplb", "enable-eplb", "through a buffer as large as a layer's experts of a rank"),
    (
        "vllm",
        "-dp 4 -ep --enable-eplb --eplb-config.num_redundant_experts 8",
        "eplb-config",
        "adds 8 copies of experts to every layer: a rank holds 264 / 4 = 66 of a layer",
    ),
    ("vllm", "--no-async-scheduling", "no-async-scheduling", "has one step less in flight"),
    ("sglang", "--swa-full-tokens-ratio 0.3", "swa-full-tokens-ratio", "brings 0.3 tokens of the window pool"),
    ("sglang", "--max-total-tokens 4096", "max-total-tokens", "ends the pools at 4096 tokens"),
    ("sglang", "--ep-num-redundant-experts 32", "ep-num-redundant-experts", "adds 32 copies of experts"),
    ("sglang", "--cpu-offload-gb 4", "cpu-offload-gb", "keeps 4 GiB"),
]


@pytest.mark.parametrize(("engine", "flags", "flag", "words"), CHANGES_BYTES)
def test_a_flag_that_changes_bytes_is_never_ignored(engine: str, flags: str, flag: str, words: str) -> None:
    found = import_command(f"{'vllm serve' if engine == 'vllm' else SGLANG} {FLASH} {flags}")
    assert found.unknown == []
    assert f"--{flag}" in found.not_carried
    assert f"--{flag}" not in [*found.ignored, *found.understood]
    assert any(warning.startswith(f"--{flag}") and words in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve {FLASH} -tp 4 --quantization deepseek_v4_fp8 --cpu-offload-gb 0 -dcp 1 --async-scheduling",
        f"{SGLANG} {FLASH} --swa-full-tokens-ratio 0.1 --ep-num-redundant-experts 0",
        f"SGLANG_DSV4_FP4_EXPERTS=1 {SGLANG} {FLASH}",
    ],
)
def test_values_that_change_nothing_are_quiet(command: str) -> None:
    found = import_command(command)
    assert (found.not_carried, found.warnings) == ([], [])


def test_fp8_copies_of_the_experts_are_said() -> None:
    warnings = import_command(f"SGLANG_DSV4_FP4_EXPERTS=0 {SGLANG} {FLASH}").warnings
    assert any("takes a copy of the files with FP8 experts" in warning for warning in warnings)


def test_the_bridge_knows_the_experts_of_every_release() -> None:
    for release, experts in EXPERTS.items():
        assert compose([f"model={release}"]).model.n_routed_experts == experts
