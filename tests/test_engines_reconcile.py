"""Start-up logs of vLLM and SGLang beside a plan: texts of our own in the engines' formats, with published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from builder.engines.logs import GIB, parse_log

LOGS = Path(__file__).parent / "data" / "logs"


def terms(run: Run, name: str, *line: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    result = run("task=reconcile", f"log={LOGS / name}", "output=json", *line)
    assert result.err == ""
    found = result.document
    by_name = {f"{term['term']} {term['stage']}" if term["stage"] else term["term"]: term for term in found["terms"]}
    return result.code, by_name, found


H20 = ("model=v4_flash", "hardware.device=h20", "tp=2", "ep=2", "runtime.memory_fraction=0.95")


def test_vllm_flash_on_two_h20(run: Run) -> None:
    # vLLM #40821 has the weights, #51041 the cache and its tokens.
    code, term, document = terms(run, "vllm_flash_h20.txt", *H20, "runtime.max_model_len=912128")
    assert (code, document["engine"], document["agrees"]) == (0, "vllm", True)
    assert term["weights"]["log"] == round(74.85 * GIB)
    assert term["weights"]["agrees"] is True
    assert abs(term["weights"]["percent"]) < 3
    assert term["weights"]["difference"] == term["weights"]["log"] - term["weights"]["plan"]
    assert term["cache memory"]["log"] == round(7.01 * GIB)
    assert term["tokens"]["log"] == 1_009_661
    assert term["tokens"]["explanation"] == (
        "vLLM prints concurrency x 912,128, not a capacity: with a fixed part per request, shorter requests hold fewer "
        "tokens (vLLM issue 51041)"
    )
    assert term["requests of 912,128 tokens"]["log"] == 1.11
    assert term["one request of 912,128 tokens"]["explanation"].startswith("vLLM reserves more for a request")
    assert term["graph memory"]["log"] == round(0.94 * GIB)
    assert term["graph memory, estimated"]["log"] == round(1.02 * GIB)
    assert term["activations"]["log"] == round(5.82 * GIB)
    assert term["cache blocks"]["log"] == 11_984
    assert term["loading time"]["log"] == pytest.approx(82.019377)
    assert document["notes"] == []
    # What speaks of memory and is not read is listed, not swallowed.
    assert [line.partition(": ")[0] for line in document["unmatched_lines"]] == ["10"]


def test_a_log_of_another_length_or_fraction_is_noted(run: Run) -> None:
    _, _, document = terms(run, "vllm_flash_h20.txt", *H20[:-1])
    assert document["notes"] == [
        "the log is for 912,128 tokens per request, the configuration for 131,072: add runtime.max_model_len=912128",
        "the log is for a memory fraction of 0.95, the configuration for 0.9: add runtime.memory_fraction=0.95",
    ]


def test_sglang_marlin_repacks_the_experts(run: Run) -> None:
    # InferenceX #2128: 125.65 loaded where the files hold 101.6, and the least fraction to 4 digits.
    code, term, document = terms(run, "sglang_pro_h200_marlin.txt", "hardware.device=h200", "tp=8")
    assert (code, document["engine"], document["agrees"]) == (1, "sglang", False)
    assert term["weights"]["agrees"] is False
    assert term["weights"]["explanation"] == (
        "24 % more than stored: the Marlin runner repacks FP4 experts, about +25 % (InferenceX issue 2128)"
    )
    assert term["least memory fraction"]["log"] == 0.9112
    assert 0.70 < term["least memory fraction"]["plan"] < 0.77


def test_sglang_with_a_drafter(run: Run) -> None:
    code, term, _ = terms(run, "sglang_pro_b300.txt", "tp=8", "spec=mtp", "runtime.max_model_len=1048576")
    assert code == 0
    assert term["weights"]["log"] == round(103.5 * GIB)
    assert term["drafter"]["log"] == round(1.76 * GIB)
    assert (term["weights"]["agrees"], term["drafter"]["agrees"]) == (True, True)
    assert term["tokens"]["log"] == 13_107_200
    assert abs(term["tokens"]["percent"]) < 10
    assert term["graph memory"]["log"] == round(2.1 * GIB)


def test_the_pools_of_sglang_are_compared_one_by_one(run: Run) -> None:
    # The log's figures are what SGLang 0.5.23 makes of its formulas for these tokens and 256 running requests.
    _, term, document = terms(run, "sglang_pro_b300.txt", "tp=8", "spec=mtp", "runtime.max_model_len=1048576")
    for name in ("bytes of a token", "open HCA rows", "window rows", "CSA entries", "HCA entries"):
        assert abs(term[name]["percent"]) < 0.1, name
    assert term["window rows"]["plan"] == 1_310_720
    assert term["memory of all pools"]["log"] == round(145.22 * GIB)
    assert document["unmatched_lines"] == []


def test_where_there_are_no_such_pools_none_are_planned(run: Run) -> None:
    line = ("tp=8", "spec=mtp", "hardware=amd", "runtime.max_model_len=1048576")
    _, term, _ = terms(run, "sglang_pro_b300.txt", *line)
    assert (term["tokens"]["plan"], term["bytes of a token"]["plan"], term["open HCA rows"]["plan"]) == (None,) * 3


def test_a_named_engine_reserves_for_a_request(run: Run) -> None:
    line = (*H20, "runtime.max_model_len=912128")
    _, ours, _ = terms(run, "vllm_flash_h20.txt", *line)
    _, theirs, _ = terms(run, "vllm_flash_h20.txt", *line, "plan.engine=vllm")
    name = "one request of 912,128 tokens"
    assert theirs[name]["plan"] == 10_245 * 1_002_240 > ours[name]["plan"]


def test_a_drafter_that_the_configuration_lacks(run: Run) -> None:
    code, term, _ = terms(run, "sglang_pro_b300.txt", "tp=8", "runtime.max_model_len=1048576")
    assert code == 1
    assert term["drafter"]["explanation"] == (
        "the configuration has no such part; the log loads one: name the method with spec="
    )


def test_stages_are_told_apart(run: Run) -> None:
    line = ("hardware.device=h100", "pp=2", "tp=8", "ep=8", "spec=mtp")
    code, term, document = terms(run, "vllm_pro_stages.txt", *line)
    assert code == 0
    assert [(t["stage"], t["agrees"]) for t in document["terms"] if t["term"] == "weights"] == [(0, True), (1, True)]
    assert [t["log"] for t in document["terms"] if t["term"] == "cache memory"] == [
        round(14.2 * GIB),
        round(13.6 * GIB),
    ]
    assert term["tokens"]["log"] == 5_242_880


def test_a_request_that_did_not_fit(run: Run) -> None:
    # vLLM #44376: 6.66 GiB needed, 5.44 available, 13,528 possible.
    line = ("model=v4_flash", "hardware.device=gh200", "tp=2", "ep=2", "runtime.max_model_len=30000")
    _, term, _ = terms(run, "vllm_too_long.txt", *line, "runtime.memory_fraction=0.95")
    assert term["one request of 30,000 tokens"]["log"] == round(6.66 * GIB)
    assert term["longest request"]["log"] == 13_528
    assert term["cache memory"]["log"] == round(5.44 * GIB)


@pytest.mark.parametrize(
    ("line", "explanation"),
    [
        ("tp=1 ep=1", "about half: the engine's tp, pp or ep is twice the configuration's"),
        (
            "tp=4 ep=4",
            "about twice: the engine dequantized the weights, or its tp or ep is half of the configuration's",
        ),
    ],
)
def test_another_split_is_named(run: Run, line: str, explanation: str) -> None:
    code, term, _ = terms(run, "vllm_flash_h20.txt", "model=v4_flash", "hardware.device=h20", *line.split())
    assert (code, term["weights"]["explanation"]) == (1, explanation)


def test_people_see_a_table(run: Run) -> None:
    result = run("task=reconcile", f"log={LOGS / 'vllm_flash_h20.txt'}", *H20)
    assert result.code == 0
    assert "vLLM 0.33.0 log beside the plan" in result.out
    assert "not read, line 10:" in result.out


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("Model loading took 74.85 GiB and 81.2 seconds", {"loaded_gib": 74.85, "load_seconds": 81.2}),
        ("Model loading took 74.85 GiB memory and 81.204113 seconds", {"loaded_gib": 74.85, "load_seconds": 81.204113}),
        ("GPU KV cache size: 1,009,661 tokens", {"tokens": 1009661}),
        (
            "GPU + host KV cache size: 8 tokens, Maximum concurrency for 4 tokens per request: 2.00x",
            {"tokens": 8, "length": 4, "concurrency": 2},
        ),
        (
            "Initial free memory 94.1 GiB, reserved 9.31 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
            "config and skipped memory profiling.",
            {"cache_gib": 9.31},
        ),
        (
            "Load weight end. type=X, dtype=torch.bfloat16, avail mem=80.84 GB, mem usage=94.50 GB.",
            {"loaded_gib": 94.5},
        ),
        ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 314304, KV size: 29.32 GB", {"pool_gib": 29.32}),
        (
            "KV Cache is allocated. dtype: torch.uint8, #tokens: 10, K size: 1.83 GB, V size: 1.84 GB",
            {"keys_gib": 1.83, "values_gib": 1.84},
        ),
        ("SWAKVPool mem usage: 36.69 GB, swa size: 171008, full size: 213761", {"window_rows": 171008}),
        ("max_total_num_tokens=1059584", {"tokens": 1059584}),
        ("Capture cuda graph end. elapsed=8.38 s, mem usage=2.66 GB, avail mem=1.00 GB.", {"graphs_gib": 2.66}),
    ],
)
def test_every_line_format(line: str, figures: dict[str, float]) -> None:
    found = {figure.name: figure.value for figure in parse_log(f"\x1b[36m{line}\x1b[0m").figures}
    assert figures.items() <= found.items()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nothing.txt",
            "holds no line that vLLM or SGLang prints about memory at start-up; "
            "give a log from the start, with level INFO",
        ),
        (
            "nope.txt",
            "cannot be read (no such file or directory); give the start-up log of vLLM or SGLang as a text file",
        ),
        ("/dev/null", "is a device or a pipe, no file; give the start-up log of vLLM or SGLang as a text file"),
        (".", "cannot be read (is a directory); give the start-up log of vLLM or SGLang as a text file"),
    ],
)
def test_a_log_that_is_none(run: Run, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "nothing.txt").write_text("hello\n")
    result = run("task=reconcile", f"log={name}")
    assert (result.code, result.out, result.err) == (2, "", f"builder: log={name}: {message}\n")


def test_a_log_too_large_is_refused_before_it_is_read(run: Run) -> None:
    with Path("large.log").open("wb") as file:
        file.truncate((256 << 20) + 1)
    message = "log=large.log: is larger than 256 MiB; give its start-up part only"
    assert run("task=reconcile", "log=large.log").err == f"builder: {message}\n"


def test_a_log_full_of_lines_about_memory_is_read_in_time(run: Run) -> None:
    # A server that logged for weeks: the figures are found, and of what is not read the first lines are listed.
    noise = "INFO 08-07 21:32:22 [x.py:1] some request used 12.5 GiB of the KV cache, #tokens 5\n"
    start = "Model loading took 74.85 GiB memory and 81.2 seconds\n"
    Path("weeks.log").write_text(noise * 50_000 + start, encoding="utf-8")
    result = run("task=reconcile", "log=weeks.log", *H20, "output=json")
    assert result.code == 0
    assert len(result.document["unmatched_lines"]) == 101
    assert result.document["unmatched_lines"][-1] == "and 49,900 lines more"


def test_a_stage_that_the_configuration_lacks_is_a_no(run: Run) -> None:
    Path("pp.log").write_text(
        "[2026-08-21 TP0 PP3] Load weight end. elapsed=1 s, type=A, avail mem=9 GB, mem usage=2 GB\n"
    )
    result = run("task=reconcile", "log=pp.log", "output=json")
    term = next(term for term in result.document["terms"] if term["term"] == "stages")
    assert (result.code, term["plan"], term["log"], term["explanation"]) == (
        1,
        1,
        4,
        "the log is of 4 pipeline stages: add pp=4",
    )


def test_reconcile_needs_a_log_and_draws_nothing(run: Run) -> None:
    assert run("task=reconcile").err == "builder: log: task=reconcile reads a log; give log=FILE, a start-up log\n"
    result = run("task=reconcile", f"log={LOGS / 'vllm_flash_h20.txt'}", "report.html=x.html")
    works = "leave it out; task=plan draws"
    assert result.err == f"builder: report.html=x.html: a comparison is a table, nothing of it is drawn; {works}\n"


def test_a_log_without_weights_has_no_answer(run: Run) -> None:
    Path("late.log").write_text("Available KV cache memory: 5.44 GiB\n")
    result = run("task=reconcile", "log=late.log", *H20, "output=json")
    assert (result.code, result.document["agrees"]) == (1, None)
    assert "the log has no line of the loaded weights (Model loading took …)" in result.document["notes"][-1]
    assert "No answer." in run("task=reconcile", "log=late.log", *H20).out


def test_a_log_of_two_engines_says_which_was_read(run: Run) -> None:
    text = (LOGS / "vllm_flash_h20.txt").read_text(encoding="utf-8")
    Path("both.log").write_text(text + "max_total_num_tokens=1059584\n")
    notes = run("task=reconcile", "log=both.log", *H20, "output=json").document["notes"]
    assert any("lines of two engines" in note and "read as vLLM 0.33.0's" in note for note in notes)
