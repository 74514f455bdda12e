"""What a plan says in words: why a part is not there, and what a number does not show."""

from __future__ import annotations

from builder.assembly.stages import Assembly
from builder.components.base.spec import Account
from builder.components.stage.spec import StageSpec
from builder.schema.config import BuildConfig

_NO_DRAFTER = {
    "none": "spec=none drafts nothing",
    "ngram": "spec=ngram looks drafts up in the prompt",
}


def absences(config: BuildConfig, *, last_stage: bool) -> dict[str, str]:
    """Why a rank has no stash or no drafter, by part; empty where it has both."""
    method = config.spec.method
    reasons: dict[str, str] = {}
    if method in _NO_DRAFTER:
        reasons["drafter"] = _NO_DRAFTER[method]
    elif not last_stage:
        reasons["drafter"] = "it stands on the last stage"
    if not config.spec.wants_stash:
        reasons["mtp_stash"] = _no_stash(method)
    elif not last_stage:
        reasons["mtp_stash"] = "it stands on the last stage"
    return reasons


def _no_stash(method: str) -> str:
    match method:
        case "draft_model":
            return "spec.stash=false, and an independent draft reads nothing from the target"
        case "dspark":
            return "spec=dspark reads averaged hidden states instead"
        case _:
            return _NO_DRAFTER.get(method, f"spec={method} reads nothing of it")


def notes(assembly: Assembly, whole: StageSpec) -> list[str]:
    """Sentences for the reader of a plan, most important first."""
    config = assembly.config
    return [note for note in (_kv(config), _requests(config), _hash(assembly), *_spec(config, whole)) if note]


def _kv(config: BuildConfig) -> str:
    tp = config.parallel.tp
    return f"tp={tp} does not divide the cache: there is one KV head, every tp rank holds it whole" if tp > 1 else ""


def _requests(config: BuildConfig) -> str:
    dp = config.parallel.dp
    return f"dp={dp}: requests are divided, so the capacity of a rank is that of its own replica" if dp > 1 else ""


def _hash(assembly: Assembly) -> str:
    hashed = assembly.config.model.num_hash_layers
    later = [pp for pp, stage in enumerate(assembly.stages) if pp and stage.first < hashed]
    if not later:
        return ""
    return f"hash layers stand on stages after the first ({', '.join(map(str, later))}): they are given the token ids"


def _spec(config: BuildConfig, whole: StageSpec) -> list[str]:
    spec = config.spec
    found: list[str] = []
    if config.parallel.pp > 1 and spec.method in ("mtp", "eagle", "dspark"):
        found.append("the drafter stands on the last stage, with an embedding of its own because pp > 1")
    if spec.method == "draft_model" and spec.wants_stash:
        stash = next(part for _, part in whole.members if part.account is Account.MTP_STASH)
        size = sum(tensor.nbytes for tensor in stash.tensors())
        found.append(f"an independent draft reads nothing from the target: spec.stash=false saves {size:,} bytes")
    if spec.method == "draft_model" and not spec.wants_stash:
        found.append("no stash: spec.stash=false, and an independent draft reads nothing from the target")
    return found
