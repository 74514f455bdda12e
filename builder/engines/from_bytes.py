"""Flags of a command that change what a rank holds and that no configuration of ours can say: each with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from builder.engines.command import EXPERTS
from builder.engines.found import Found
from builder.engines.reading import Read

Words = Callable[[Read, Found, Any], str | None]
_OFF = ("0", "false", "no", "n", "off", "")
NATIVE = ("deepseek_v4_fp8", "fp8", "auto")
"""Names of the storage that the official files have: they change no byte."""


def _context(read: Read, found: Found, value: Any) -> str | None:
    return (
        None
        if str(value) == "1"
        else (
            f"divides the cache of a request among {value} ranks; in the plan every tp rank holds it whole, and fewer "
            "requests fit"
        )
    )


def _prefill(read: Read, found: Found, value: Any) -> str | None:
    return (
        None
        if str(value) == "1"
        else (
            f"runs on {value} times the ranks: they divide the tokens of a prefill and, without expert parallel, the "
            "experts; the plan has neither"
        )
    )


def _offload(read: Read, found: Found, value: Any) -> str | None:
    return (
        None
        if _zero(value)
        else (f"keeps {value} GiB of a rank's weights in the host's memory: the plan counts them on the device")
    )


def _overrides(read: Read, found: Found, value: Any) -> str | None:
    keys = ", ".join(cast("dict[str, Any]", value)) if isinstance(value, dict) else str(value)
    return f"changes the model's config.json ({keys}): the plan is of the release as published; give model.config=PATH"


def _storage(read: Read, found: Found, value: Any) -> str | None:
    return None if value in NATIVE else f"stores the weights as {value}: the plan has the bytes of the official files"


def _redundant(read: Read, found: Found, value: Any) -> str | None:
    if _zero(value) or not str(value).isdigit():
        return None
    ep = next((int(word[3:]) for word in found.overrides if word.startswith("ep=")), 1)
    experts = next((EXPERTS[word[6:]] for word in found.overrides if word[6:] in EXPERTS), 0)
    more = f"{experts + int(value)} / {ep} = {(experts + int(value)) // ep} of a layer" if experts else "more"
    return f"adds {value} copies of experts to every layer: a rank holds {more}, and the plan counts none of the copies"


def _eplb_config(read: Read, found: Found, value: Any) -> str | None:
    # Copies are made only where the balancer runs.
    held = cast("dict[str, Any]", value).get("num_redundant_experts") if isinstance(value, dict) else None
    return None if held is None or not read.flags.get("enable-eplb") else _redundant(read, found, held)


def _balanced(read: Read, found: Found, value: Any) -> str | None:
    return (
        "moves experts between ranks while it serves, through a buffer as large as a layer's experts of a rank: the "
        "plan does not count it"
    )


def _synchronous(read: Read, found: Found, value: Any) -> str | None:
    return (
        "has one step less in flight: a request reserves fewer pages than plan.engine=vllm counts, which is for "
        "asynchronous scheduling"
    )


def _window_share(read: Read, found: Found, value: Any) -> str | None:
    return (
        None
        if str(value) in ("0.1", "0.10")
        else (
            f"brings {value} tokens of the window pool for one of the full pool: the plan counts 0.1, and a token then "
            "costs otherwise"
        )
    )


def _most_tokens(read: Read, found: Found, value: Any) -> str | None:
    return f"ends the pools at {value} tokens, whatever memory is free: the plan fills the memory"


_FLAGS: dict[str, dict[str, Words]] = {
    "vllm": {
        "decode-context-parallel-size": _context,
        "prefill-context-parallel-size": _prefill,
        "cpu-offload-gb": _offload,
        "hf-overrides": _overrides,
        "quantization": _storage,
        "enable-eplb": _balanced,
        "eplb-config": _eplb_config,
        "no-async-scheduling": _synchronous,
    },
    "sglang": {
        "swa-full-tokens-ratio": _window_share,
        "max-total-tokens": _most_tokens,
        "ep-num-redundant-experts": _redundant,
        "cpu-offload-gb": _offload,
        "quantization": _storage,
    },
}
"""The registration of a flag: what it changes, in words; None where its value changes nothing."""

FP4_EXPERTS = "SGLANG_DSV4_FP4_EXPERTS"


def warn(read: Read, found: Found) -> None:
    """Say what is not carried over. Such flags are neither understood nor ignored."""
    for flag, words in _FLAGS[read.engine].items():
        value = read.flags.get(flag)
        said = None if value is None else words(read, found, value)
        if said is not None:
            found.not_carried.append(flag)
            shown = f" {value}" if value is not True and not isinstance(value, dict) else ""
            found.warnings.append(f"--{flag}{shown} {said}")
    asked = read.environment.get(FP4_EXPERTS)
    if read.engine == "sglang" and asked is not None and asked.lower() in _OFF:
        found.warnings.append(
            f"{FP4_EXPERTS}={asked} takes a copy of the files with FP8 experts, nearly twice the bytes: the plan is of "
            "the FP4 files; the Base releases (model=v4_pro_base, v4_flash_base) have experts of that size"
        )


def _zero(value: Any) -> bool:
    return str(value) in ("0", "0.0")
