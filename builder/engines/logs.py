"""What vLLM 0.33.0 and SGLang 0.5.23 print about memory while they start, as figures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ConfigError, Problem

GIB = 1 << 30
LARGEST_LOG = 256 << 20
MOST_UNMATCHED = 100

_N = r"(-?[\d.]+)"
_WHOLE = r"([\d,]+)"
_LINES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    # Names ending in _gib are bytes / 2^30. SGLang prints "GB" and divides by 2^30 as well.
    "vllm": (
        (rf"Model loading took {_N} GiB(?: memory)? and {_N} seconds", ("loaded_gib", "load_seconds")),
        (rf"Available KV cache memory: {_N} GiB", ("cache_gib",)),
        (rf"reserved {_N} GiB memory for KV Cache as specified by kv_cache_memory_bytes", ("cache_gib",)),
        (
            rf"KV cache size: {_WHOLE} tokens, Maximum concurrency for {_WHOLE} tokens per request: {_N}x",
            ("tokens", "length", "concurrency"),
        ),
        (rf"KV cache size: {_WHOLE} tokens", ("tokens",)),
        (rf"Maximum concurrency for {_WHOLE} tokens per request: {_N}x", ("length", "concurrency")),
        (rf"Estimated CUDA graph memory: {_N} GiB total", ("graphs_estimated_gib",)),
        (rf"Graph capturing finished in {_N} secs, took {_N} GiB", ("graph_seconds", "graphs_gib")),
        (rf"after num_gpu_blocks is: {_WHOLE}", ("blocks",)),
        (rf"Overriding num_gpu_blocks={_WHOLE} with", ("blocks",)),
        (
            rf"Free memory on device \({_N}/{_N} GiB\) on startup\. Desired GPU memory utilization is \({_N}, {_N} "
            rf"GiB\)\. Actual usage is {_N} GiB for consumed memory \(weights \+ non-torch\), {_N} GiB for "
            "peak activation",
            ("free_gib", "device_gib", "fraction", "budget_gib", "consumed_gib", "activations_gib"),
        ),
        (
            rf"max seq len \({_WHOLE}\), \({_N} GiB KV cache is needed, which is larger than the available KV cache "
            rf"memory \({_N} GiB\)\. Based on the available memory, the estimated maximum model length is {_WHOLE}",
            ("length", "needed_gib", "cache_gib", "longest"),
        ),
        (
            rf"max seq len \({_WHOLE}\), \({_N} GiB KV cache is needed, which is larger than the available KV cache "
            rf"memory \({_N} GiB\)",
            ("length", "needed_gib", "cache_gib"),
        ),
    ),
    "sglang": (
        (rf"Load weight begin\. avail mem={_N} GB", ("before_gib",)),
        (
            rf"Load weight end\. elapsed={_N} s, type=(\w+), .*?avail mem={_N} GB, mem usage={_N} GB",
            ("load_seconds", "class", "after_gib", "loaded_gib"),
        ),
        (rf"Load weight end\. .*?avail mem={_N} GB, mem usage={_N} GB", ("after_gib", "loaded_gib")),
        (
            rf"max_total_num_tokens={_WHOLE}, chunked_prefill_size=(-?\d+|None), max_prefill_tokens={_WHOLE}, "
            rf"max_running_requests={_WHOLE}, context_len={_WHOLE}, available_gpu_mem={_N} GB",
            ("tokens", "chunk", "prefill", "requests", "length", "left_gib"),
        ),
        (rf"max_total_num_tokens={_WHOLE}", ("tokens",)),
        (rf"#tokens: {_WHOLE}, K size: {_N} GB, V size: {_N} GB", ("pool_tokens", "keys_gib", "values_gib")),
        (rf"#tokens: {_WHOLE}, KV size: {_N} GB", ("pool_tokens", "pool_gib")),
        (
            rf"SWAKVPool mem usage: {_N} GB, swa size: {_WHOLE}, full size: {_WHOLE}",
            ("pool_gib", "window_rows", "pool_tokens"),
        ),
        (
            r"Initialize DeepSeekV4TokenToKVPool with max_num_reqs=(\d+) swa_size=(\d+) c4_size=(\d+) "
            r"c4_logical_size=\d+ c128_size=(\d+) c4_state_pool_size=(\d+) c128_state_pool_size=(\d+)",
            ("requests", "window_rows", "csa_rows", "hca_rows", "csa_open", "hca_open"),
        ),
        (
            r"DSV4 pool sizes: full=(\d+), swa=(\d+), c4=(\d+), c128=(\d+), c4_state=(\d+), c128_state=(\d+)",
            ("pool_tokens", "window_rows", "csa_rows", "hca_rows", "csa_open", "hca_open"),
        ),
        (
            rf"DSV4 memory calculation: .*bytes_per_full_token={_N}, available_bytes={_N} GB, c128_state_fixed={_N} GB",
            ("pool_token_bytes", "pools_gib", "open_fixed_gib"),
        ),
        (rf"Memory pool end\. avail mem={_N} GB", ("after_pool_gib",)),
        (
            rf"Capture (?:.*? )?(?:CUDA|cuda) graph end\. elapsed={_N} s, mem usage={_N} GB",
            ("graph_seconds", "graphs_gib"),
        ),
        (
            rf"Loaded weights leave no GPU memory for the KV cache.*?available/pre = {_N}\)",
            ("least_fraction",),
        ),
    ),
}


def _anchor(pattern: str) -> str:
    """The longest plain text of a pattern: a line without it need not be searched."""
    return max(re.split(r"[\\()\[\].*+?{}|^$]", pattern), key=len)


_PATTERNS = {
    engine: tuple((_anchor(pattern), re.compile(pattern), names) for pattern, names in lines)
    for engine, lines in _LINES.items()
}
_STAGE = re.compile(r"(?:\(Worker[^)]*?_|\[[^\]]*\s)PP(\d+)")
_ABOUT_MEMORY = re.compile(r"\d\s?(?:GiB|GB|MiB|MB)\b|KV cache|#tokens|out of memory", re.IGNORECASE)
_DRAFT = re.compile(r"NextN|MTP|DSpark|Eagle", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a log. stage: the pipeline stage that the line names, or None; draft: it is of the drafter."""

    name: str
    value: float
    stage: int | None
    draft: bool
    line: int


@dataclass(frozen=True, slots=True)
class Log:
    """A start-up log. unmatched: lines about memory that no rule reads, with their numbers.

    matched: lines read as each engine's; the one with more of them is taken.
    """

    engine: str
    figures: tuple[Figure, ...]
    unmatched: tuple[str, ...]
    matched: tuple[tuple[str, int], ...]

    def most(self, name: str, *, stage: int | None = None, draft: bool = False) -> float | None:
        """The largest figure of a name; those of a stage where the log tells stages apart."""
        found = [figure for figure in self.figures if figure.name == name and figure.draft == draft]
        own = [figure for figure in found if stage is None or figure.stage in (stage, None)]
        return max((figure.value for figure in own), default=None)

    def least(self, name: str, *, stage: int | None = None) -> float | None:
        """The smallest figure of a name: what the slowest, or fullest, rank has."""
        found = [figure for figure in self.figures if figure.name == name and not figure.draft]
        own = [figure for figure in found if stage is None or figure.stage in (stage, None)]
        return min((figure.value for figure in own), default=None)

    def stages(self, name: str) -> tuple[int | None, ...]:
        """The stages that a figure is given for; (None,) where the log does not tell them apart."""
        found = {figure.stage for figure in self.figures if figure.name == name and not figure.draft}
        return tuple(sorted(found, key=lambda stage: -1 if stage is None else stage))


def read_log(path: str) -> Log:
    """Read a log file. Raises ConfigError where that cannot be done, or where neither engine wrote it."""
    works, fault = "give the start-up log of vLLM or SGLang as a text file", ""
    try:
        file, text = Path(path), ""
        if file.exists() and not file.is_file() and not file.is_dir():
            fault = "is a device or a pipe, no file"
        elif file.stat().st_size > LARGEST_LOG:
            fault, works = f"is larger than {LARGEST_LOG >> 20} MiB", "give its start-up part only"
        else:
            text = file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        words = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
        raise ConfigError([Problem("log", path, f"cannot be read ({words})", works)]) from None
    if fault:
        raise ConfigError([Problem("log", path, fault, works)])
    return parse_log(text, path)


def parse_log(text: str, name: str = "log") -> Log:
    """The figures of a log's text."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    read = {engine: [_read(engine, line) for line in lines] for engine in _PATTERNS}
    matched = {engine: sum(1 for found in lines if found) for engine, lines in read.items()}
    engine = max(matched, key=matched.__getitem__)
    if not any(read[engine]):
        reason = "holds no line that vLLM or SGLang prints about memory at start-up"
        works = "give a log from the start, with level INFO"
        raise ConfigError([Problem("log", name, reason, works)])
    figures: list[Figure] = []
    for number, (line, found) in enumerate(zip(lines, read[engine], strict=True), start=1):
        stage = _STAGE.search(line)
        draft = bool(_DRAFT.search(str(found.pop("class", ""))))
        for key, value in found.items():
            figures.append(Figure(key, float(value), int(stage[1]) if stage else None, draft, number))
    return Log(
        engine, tuple(figures), tuple(_unmatched(lines, {figure.line for figure in figures})), (*matched.items(),)
    )


def _unmatched(lines: list[str], taken: set[int]) -> list[str]:
    found = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if number not in taken and _ABOUT_MEMORY.search(line)
    ]
    shown = [f"{number}: {line.strip()[:200]}" for number, line in found[:MOST_UNMATCHED]]
    return shown + ([f"and {len(found) - MOST_UNMATCHED:,} lines more"] if len(found) > MOST_UNMATCHED else [])


def _read(engine: str, line: str) -> dict[str, str]:
    for anchor, pattern, names in _PATTERNS[engine]:
        found = pattern.search(line) if anchor in line else None
        if found:
            values = {name: text.replace(",", "") for name, text in zip(names, found.groups(), strict=True)}
            return {name: text for name, text in values.items() if name == "class" or _is_number(text)}
    return {}


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?|-?\.\d+", text))
