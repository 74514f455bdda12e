"""The spec group: speculative decoding. Each method has its own keys, so a key it does not know cannot be set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import Problem
from builder.schema.fields import field_problems, one_of, setting
from builder.schema.model import ModelConfig

MOST_DRAFTS = 1024


@dataclass(slots=True, kw_only=True)
class SpecConfig:
    """What every method answers. The base class itself is ``spec=none``."""

    method: str = setting()

    @property
    def drafts(self) -> int:
        """Tokens proposed per step (k): rings and open compressor rows are k longer for them."""
        return 0

    @property
    def wants_stash(self) -> bool:
        """The method keeps the stream before hc_head (vLLM PR #50312)."""
        return False

    @property
    def own_checkpoint(self) -> str | None:
        """Files of a draft model, or of a head that the release does not hold."""
        return None

    @property
    def brings(self) -> str:
        """``module:function`` that makes the parts which the method adds to the last stage; empty: none."""
        return ""


@dataclass(slots=True, kw_only=True)
class DraftingSpecConfig(SpecConfig):
    """A method that proposes ``num_speculative_tokens`` tokens per step."""

    num_speculative_tokens: int = setting(least=1, most=MOST_DRAFTS)

    @property
    def drafts(self) -> int:
        return self.num_speculative_tokens


@dataclass(slots=True, kw_only=True)
class NgramSpecConfig(DraftingSpecConfig):
    """Prompt look-up: the last ``max_ngram`` down to ``min_ngram`` tokens are searched in the sequence."""

    min_ngram: int = setting(least=1, most=MOST_DRAFTS)
    max_ngram: int = setting(least=1, most=MOST_DRAFTS)


@dataclass(slots=True, kw_only=True)
class MTPSpecConfig(DraftingSpecConfig):
    """The release's own ``mtp.0`` block."""

    stash: bool = setting()

    @property
    def wants_stash(self) -> bool:
        return self.stash

    @property
    def brings(self) -> str:
        return "builder.assembly.drafters:mtp_members"


@dataclass(slots=True, kw_only=True)
class EagleSpecConfig(MTPSpecConfig):
    """The same block, from ``checkpoint`` if given."""

    checkpoint: str | None = None

    @property
    def own_checkpoint(self) -> str | None:
        return self.checkpoint


@dataclass(slots=True, kw_only=True)
class DraftModelSpecConfig(EagleSpecConfig):
    """A second DeepSeek-V4, chosen by ``model@draft=``, whole on the last stage."""

    @property
    def brings(self) -> str:
        return "builder.assembly.drafters:draft_model_members"


@dataclass(slots=True, kw_only=True)
class DSparkSpecConfig(SpecConfig):
    """A DSpark release's three blocks; ``num_speculative_tokens`` null means the release's block size."""

    num_speculative_tokens: int | None = setting(least=1, most=MOST_DRAFTS)

    @property
    def drafts(self) -> int:
        assert self.num_speculative_tokens is not None, "resolved from dspark_block_size before use"
        return self.num_speculative_tokens

    @property
    def brings(self) -> str:
        return "builder.assembly.drafters:dspark_members"


SPEC_CONFIGS: dict[str, type[SpecConfig]] = {
    "none": SpecConfig,
    "ngram": NgramSpecConfig,
    "mtp": MTPSpecConfig,
    "eagle": EagleSpecConfig,
    "draft_model": DraftModelSpecConfig,
    "dspark": DSparkSpecConfig,
}
"""The registration of a method: its keys, and through ``brings`` the parts it adds."""


def spec_problems(spec: SpecConfig, model: ModelConfig, draft: ModelConfig | None) -> Iterator[Problem]:
    """What the method needs of the release, and what it cannot do without."""
    yield from field_problems(spec, "spec")
    if spec.method not in SPEC_CONFIGS:
        yield Problem("spec.method", spec.method, "is not known", one_of(SPEC_CONFIGS, spec.method))
    if isinstance(spec, NgramSpecConfig) and spec.min_ngram > spec.max_ngram:
        yield Problem(
            "spec.min_ngram", spec.min_ngram, f"more than spec.max_ngram={spec.max_ngram}", f"use 1 to {spec.max_ngram}"
        )
    match spec.method:
        case "mtp" | "eagle":
            if isinstance(spec, MTPSpecConfig) and not spec.stash:
                yield Problem(
                    "spec.stash",
                    "false",
                    f"spec={spec.method} drafts from the stashed stream",
                    "leave it true; only spec=draft_model can do without",
                )
            if spec.own_checkpoint is None:
                yield from _mtp_problems(spec, model)
        case "dspark" if not model.is_dspark:
            yield Problem(
                "spec",
                "dspark",
                f"{model.name} holds no DSpark stages (its config has no dspark_block_size)",
                f"use {'spec=mtp' if model.has_mtp else 'spec=ngram'}, or model=v4_pro_0813 or model=v4_flash_0731",
            )
        case "draft_model" if draft is not None and draft.vocab_size != model.vocab_size:
            yield Problem(
                "model@draft",
                draft.name,
                f"its vocabulary of {draft.vocab_size} is not the target's {model.vocab_size}",
                "use a draft with the same vocabulary",
            )
        case _:
            pass


def _mtp_problems(spec: SpecConfig, model: ModelConfig) -> Iterator[Problem]:
    if model.is_dspark:
        yield Problem(
            "spec",
            spec.method,
            f"{model.name} is a DSpark release: its mtp.* tensors are DSpark stages, "
            f"although num_nextn_predict_layers={model.num_nextn_predict_layers}",
            "use spec=dspark",
        )
    elif not model.has_mtp:
        works = "use spec=ngram" + (", or give spec.checkpoint=DIR" if spec.method == "eagle" else "")
        yield Problem("spec", spec.method, f"{model.name} holds no MTP block (num_nextn_predict_layers is 0)", works)
