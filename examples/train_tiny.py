"""Train the small checkpoint that ships with builder: the backbone and its MTP block, on Python's standard library.

python examples/train_tiny.py --out builder/assets/tiny --log training.jsonl --minutes 33 --workers 2 --compiled
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import builder
from builder.checkpoint.config_writing import official_config
from builder.components.base.module import TORCH_DTYPES, Component
from builder.components.base.spec import Origin, walk
from builder.components.base.step import Block, Step
from builder.components.csa.module import CompressedSparseAttention
from builder.components.hash_router.module import HashRouter
from builder.components.hyper_connections.module import HyperConnection
from builder.components.indexer.module import Indexer
from builder.components.mtp_drafter.module import MTPDrafter
from builder.components.rotary.module import Rotary
from builder.components.router.module import Router
from builder.components.stage.module import Stage
from builder.kernels.operations import HyperConnectionOps
from builder.kernels.shapes import unflatten
from builder.runtime.cache import NoPast
from builder.runtime.step import make_step
from builder.schema.config import BuildConfig
from builder.schema.model import ModelConfig

BOS, EOS = 256, 257
SPECIALS = ("<bos>", "<eos>", "<pad>", "<unused>")
CPU = torch.device("cpu")

# The text -------------------------------------------------------------------------------------------------------------

_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data"}
"""Test suites, which distributions often leave out; what is not the library's; tables and manuals."""

_HELD_OUT = 20
"""One file in this many, by the hash of its name, is never trained on."""


def stdlib_files() -> Iterator[tuple[str, bytes]]:
    """The standard library's own source: name and content, in the order of the names."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (Path(sys.base_prefix) / "lib" / version, Path(sys.base_prefix) / "Lib")
    folder = next(path for path in candidates if (path / "os.py").is_file())
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        if not _LEFT_OUT & set(name.parts) and not path.name.startswith("_sysconfigdata"):
            yield name.as_posix(), path.read_bytes()


def is_held_out(name: str) -> bool:
    """Whether a file belongs to the held-out set; depends on its name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _HELD_OUT == 0


def tokens_of(content: bytes) -> list[int]:
    """A file as tokens: its bytes between the two marks."""
    return [BOS, *content, EOS]


class Text:
    """Files one after the other, cut into windows at random: half of them begin where a line does."""

    def __init__(self, contents: list[bytes]) -> None:
        self.tokens = torch.tensor([token for content in contents for token in tokens_of(content)], dtype=torch.int16)
        self.lines = (self.tokens[:-1] == ord("\n")).nonzero().flatten() + 1

    def windows(self, count: int, length: int, seed: int) -> Tensor:
        """[count, length] tokens."""
        random = torch.Generator().manual_seed(seed)
        last = len(self.tokens) - length
        starts = torch.randint(0, last, (count,), generator=random)
        lines = self.lines[torch.randint(0, len(self.lines), (count,), generator=random)].clamp(max=last)
        starts = torch.where(torch.arange(count) % 2 == 0, starts, lines)
        return self.tokens[starts.unsqueeze(-1) + torch.arange(length)].long()


def pieces(contents: list[bytes], length: int, count: int) -> Tensor:
    """``count`` whole windows spread evenly over the files, each file cut from its beginning: [count, length]."""
    rows = [
        tokens[start : start + length]
        for tokens in map(tokens_of, contents)
        for start in range(0, len(tokens) - length + 1, length)
    ]
    count = min(count, len(rows))
    return torch.tensor([rows[index * len(rows) // count] for index in range(count)])


def tokenizer_json() -> dict[str, object]:
    """A byte-level vocabulary for the tokenizers library: every byte is its own id, and no merges.

    Special tokens can be decoded (to nothing) but not written in a prompt, so that every text comes back as it was.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(0x100, 0x200))
    letters = {byte: chr(byte if byte in printable else next(shifted)) for byte in range(256)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    vocabulary |= {special: 256 + index for index, special in enumerate(SPECIALS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    silent = [decoders.Replace(special, "") for special in SPECIALS]
    tokenizer.decoder = decoders.Sequence([*silent, decoders.ByteLevel()])
    return json.loads(tokenizer.to_str())


# The model ------------------------------------------------------------------------------------------------------------

_LINES = [
    "task=plan",
    "hardware=cpu",
    "spec=mtp",
    "cache=plain",
    "runtime.dtype=float32",
    "runtime.weights=float32",
]


def trainable_model(model: str = "tiny", *overrides: str) -> tuple[BuildConfig, Stage]:
    """The configuration and its whole model, in float32, not yet initialised."""
    config = builder.compose([*_LINES, f"model={model}", *overrides])
    return config, builder.build(config, 0, CPU, trainable=True)


@torch.no_grad()
def initialise(stage: Stage, seed: int) -> None:
    """Matrices by their inputs, norms 1, biases and sinks 0, streams that pass through and take sub-layers in turn."""
    random = torch.Generator().manual_seed(seed)
    for path, parameter in stage.named_parameters():
        kind = path.rsplit(".", 1)[-1]
        if kind.startswith("hc_"):
            continue
        if path == "embed.weight":
            parameter.normal_(0, 0.5, generator=random)
        elif kind in ("ape", "attn_sink", "bias"):
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            # what is added to the streams starts small
            ends = ".wo_b." in path or ".w2." in path
            parameter.normal_(0, (0.15 if ends else 0.5) * parameter.shape[-1] ** -0.5, generator=random)
    k = stage.spec.streams
    holders = [module for module in stage.modules() if hasattr(module, "hc_attn_fn")]
    for index, (holder, part) in enumerate(itertools.product(holders, ("attn", "ffn"))):
        fn, base, scale = (cast("Tensor", getattr(holder, f"hc_{part}_{kind}")) for kind in ("fn", "base", "scale"))
        fn.normal_(0, 0.02, generator=random)
        scale.fill_(0.1)
        # reads mostly one stream (weights sum to 1), writes to all with weight 1, mixes them hardly
        read = torch.full((k,), -2.4)
        read[index % k] = 1.1
        base.copy_(torch.cat((read, torch.zeros(k), 4 * torch.eye(k).flatten())))
    for module in stage.modules():
        if hasattr(module, "hc_head_fn"):
            cast("Tensor", module.hc_head_fn).normal_(0, 0.02, generator=random)
            cast("Tensor", module.hc_head_scale).fill_(0.1)
            cast("Tensor", module.hc_head_base).fill_(-math.log(k - 1))
    for index, router in enumerate(module for module in stage.modules() if isinstance(module, HashRouter)):
        tokens, active = router.tid2eid.shape
        router.tid2eid.copy_(spread(tokens, active, router.weight.shape[0], seed + index))


def spread(tokens: int, active: int, experts: int, seed: int) -> Tensor:
    """A table of experts for each token: every combination equally often, in an order of its own: [tokens, active]."""
    combinations = torch.tensor(list(itertools.combinations(range(experts), active)))
    order = torch.randperm(len(combinations), generator=torch.Generator().manual_seed(seed))
    return combinations[order[torch.arange(tokens) % len(order)]]


def is_learned(path: str) -> bool:
    """Whether a parameter is moved by gradients; the router's bias is moved by the load alone."""
    return not path.endswith("gate.bias")


# The objective --------------------------------------------------------------------------------------------------------

HEADS = ("main", "draft_1", "draft_2")
DRAFT_WEIGHTS = (0.3, 0.1)
"""Weight of the loss of the first draft (the token after next), and of the second, chained to the first."""

INDEX_WEIGHT = 0.1


@dataclass
class Predictions:
    """Logits of the same positions: of the next token, the one after it, and the one after that."""

    main: Tensor
    drafts: tuple[Tensor, ...]


def predict(stage: Stage, windows: Tensor, drafts: int = len(DRAFT_WEIGHTS)) -> Predictions:
    """Read windows [sequences, length + drafts + 1] as whole sequences; logits [sequences * length, vocabulary].

    The drafter is chained as in generation: its input is the stream before hc_head and the token that follows,
    then its own stream and the token after that.
    """
    length = windows.shape[1] - drafts - 1

    def step(shift: int) -> Step:
        rows = windows[:, shift : shift + length].tolist()
        return make_step(NoPast(), rows, [0] * len(rows), range(len(rows)), CPU)

    stream = stage.run_layers(step(0))
    main = stage.predict(stream)
    drafter = cast("MTPDrafter", stage.get_submodule("mtp"))
    logits: list[Tensor] = []
    for index in range(drafts):
        stream, drafted = drafter(stream, step(index + 1))
        logits.append(drafted)
    return Predictions(main, tuple(logits))


def losses(predictions: Predictions, windows: Tensor) -> list[Tensor]:
    """Cross-entropy in nats of the next token, and of each draft."""
    heads = [predictions.main, *predictions.drafts]
    length = windows.shape[1] - len(heads)
    return [
        F.cross_entropy(logits, windows[:, index + 1 : index + 1 + length].flatten())
        for index, logits in enumerate(heads)
    ]


class IndexerLoss:
    """Teaches the indexers, whose picks carry no gradient, to score entries as the attention weighs them.

    An indexer reads the model's states without changing them; its target is the mean over the heads of the
    attention's weights among the entries. Where all entries are read there is nothing to learn.
    """

    def __init__(self, stage: Stage) -> None:
        self.parts: list[Tensor] = []
        for module in stage.modules():
            if isinstance(module, CompressedSparseAttention):
                module.indexer.register_forward_pre_hook(_detach)
                module.indexer.register_forward_hook(self._listener(module))

    def take(self) -> Tensor:
        """The mean of the losses since the last call; 0 where no indexer has run."""
        parts, self.parts = self.parts, []
        return torch.stack(parts).mean() if parts else torch.zeros(())

    def _listener(self, attention: CompressedSparseAttention) -> Any:
        def listen(indexer: Indexer, inputs: tuple[Tensor, Tensor, Block, Step, Rotary], _: Tensor | None) -> None:
            x, latent, block, step, rotary = inputs
            entries = block.most_ready(indexer.spec.ratio)
            if torch.is_grad_enabled() and entries > indexer.spec.topk:
                later = torch.arange(entries) >= block.ready(indexer.spec.ratio).unsqueeze(-1)
                self.parts.append(_index_loss(attention, x, latent, block, step, rotary, later))

        return listen


def _detach(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, latent, *rest = inputs
    return x.detach(), latent.detach(), *rest


def _index_loss(
    attention: CompressedSparseAttention,
    x: Tensor,
    latent: Tensor,
    block: Block,
    step: Step,
    rotary: Rotary,
    later: Tensor,
) -> Tensor:
    indexer, entries = attention.indexer, later.shape[-1]
    cos, sin = rotary.angles(block.positions)
    turn = (cos.unsqueeze(2), sin.unsqueeze(2))
    with torch.no_grad():
        queries = _heads(attention.wq_b(latent), attention.spec.head_dim)
        queries = attention.ops.rotary.rotate(attention.ops.norm.unit_norm(queries, attention.spec.eps), turn)
        keys = step.memory.table(attention, "entries").read(block, entries)
        weights = _products(queries, keys).mul_(attention.spec.head_dim**-0.5)
        weights = weights.masked_fill_(later.unsqueeze(2), -torch.inf).softmax(-1).mean(2)
    queries = attention.ops.rotary.rotate(_heads(indexer.wq_b(latent), indexer.spec.head_dim), turn)
    keys = step.memory.table(indexer, "keys").read(block, entries)
    share = indexer.weights_proj(x) * (indexer.spec.head_dim * indexer.spec.heads) ** -0.5
    scores = torch.einsum("bthe,bth->bte", _products(queries, keys).relu(), share)
    logs = scores.masked_fill(later, -torch.inf).log_softmax(-1)
    some = ~later.all(-1)
    return -(weights * logs.masked_fill(later, 0))[some].sum(-1).mean()


def _heads(x: Tensor, width: int) -> Tensor:
    return unflatten(x, -1, (-1, width))


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    # [batch, tokens, heads, width] and [batch, entries, width] -> [batch, tokens, heads, entries]
    return unflatten(torch.bmm(queries.flatten(1, 2), keys.transpose(1, 2)), 1, (queries.shape[1], -1))


class Balance:
    """Keeps the experts evenly used without a loss: the bias of one that is used too little rises, else it falls."""

    def __init__(self, stage: Stage) -> None:
        self.routers = [module for module in stage.modules() if isinstance(module, Router)]
        self.counts = torch.zeros(len(self.routers), self.routers[0].bias.shape[0])
        for index, router in enumerate(self.routers):
            router.register_forward_hook(self._counter(index))

    def _counter(self, index: int) -> Any:
        def count(_: nn.Module, __: Any, output: tuple[Tensor, Tensor]) -> None:
            if torch.is_grad_enabled():
                self.counts[index] += torch.bincount(output[0].flatten(), minlength=self.counts.shape[1])

        return count

    @torch.no_grad()
    def move(self, rate: float) -> float:
        """Nudge every bias; returns the largest load in units of the mean."""
        if dist.is_initialized():
            dist.all_reduce(self.counts)
        mean = self.counts.mean(-1, keepdim=True)
        for router, error in zip(self.routers, mean - self.counts, strict=True):
            router.bias += rate * error.sign()
        heaviest = float((self.counts / mean).max())
        self.counts.zero_()
        return heaviest


# Training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The settings of a run."""

    minutes: float
    workers: int
    sequences: int
    length: int
    rate: float
    seed: int
    every: int
    compiled: bool
    out: Path
    log: Path | None

    @property
    def window(self) -> int:
        """Tokens of a window: the length, and what the drafts look ahead."""
        return self.length + len(DRAFT_WEIGHTS) + 1


WARM_UP, LAST_RATE, DECAY, CLIP, BIAS_RATE = 0.05, 0.02, 0.1, 1.0, 0.02

EARLY, EARLY_SINKHORN = 0.55, 6
"""Until this share of the time is over, training is made cheap: half the length, the first draft only, CSA layers that
read all entries, and this many Sinkhorn iterations, which near the identity is nearly converged. Then all is exact."""


def set_phase(stage: Stage, model: ModelConfig, *, early: bool) -> None:
    """Give the hyper-connections and the indexers the numbers of the cheap phase, or their own."""
    for module in stage.modules():
        if isinstance(module, HyperConnection):
            module.spec = replace(module.spec, sinkhorn_iters=EARLY_SINKHORN if early else model.hc_sinkhorn_iters)
        elif isinstance(module, Indexer):
            module.spec = replace(module.spec, topk=1 << 30 if early else model.index_topk)


def fuse_mixes(stage: Stage) -> None:
    """Compile the hyper-connections, which as plain operations take a third of a step."""
    plain = stage.ops.hyper_connections
    before, after = torch.compile(plain.before, dynamic=False), torch.compile(plain.after, dynamic=False)

    class Fused:
        head = staticmethod(plain.head)

        @staticmethod
        def before(*inputs: Tensor, **numbers: Any) -> tuple[Tensor, Tensor, Tensor]:
            return before(*inputs, **numbers) if torch.is_grad_enabled() else plain.before(*inputs, **numbers)

        @staticmethod
        def after(*inputs: Tensor) -> Tensor:
            return after(*inputs) if torch.is_grad_enabled() else plain.after(*inputs)

    for module in stage.modules():
        if isinstance(module, Component):
            module.ops = replace(module.ops, hyper_connections=cast("HyperConnectionOps", Fused))


def rate_at(progress: float) -> float:
    """The share of the peak rate when ``progress`` of the time is over: a linear warm-up, then half a cosine."""
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    cosine = math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP)))
    return LAST_RATE + (1 - LAST_RATE) * (1 + cosine) / 2


def seed_of(*numbers: int) -> int:
    """A seed that depends on all of the numbers."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:7], "big")


class Clock:
    """Which share of the run's time is over; all workers read that of the first."""

    def __init__(self, minutes: float) -> None:
        self.began, self.limit = time.monotonic(), 60 * minutes

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def progress(self) -> float:
        """0 at the beginning, 1 or more when the run is over."""
        share = torch.tensor(self.seconds / self.limit)
        if dist.is_initialized():
            dist.broadcast(share, 0)
        return float(share)


class Gradients:
    """All gradients in one vector, so that the workers add theirs in one go."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        for parameter, part in zip(parameters, self.flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def settle(self) -> float:
        """Mean over the workers, clipped to norm ``CLIP``; returns the norm before."""
        if dist.is_initialized():
            dist.all_reduce(self.flat)
            self.flat /= dist.get_world_size()
        norm = float(self.flat.norm())
        self.flat *= min(1.0, CLIP / (norm + 1e-6))
        return norm


def optimizer_of(stage: Stage) -> torch.optim.AdamW:
    """AdamW; matrices decay, all else does not."""
    learned = [(path, parameter) for path, parameter in stage.named_parameters() if is_learned(path)]
    decays = {path: parameter.dim() > 1 and "hc_" not in path and "ape" not in path for path, parameter in learned}
    groups = [
        {"params": [p for path, p in learned if decays[path]], "weight_decay": DECAY},
        {"params": [p for path, p in learned if not decays[path]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8, fused=True)


@torch.no_grad()
def evaluate(stage: Stage, windows: Tensor) -> dict[str, float]:
    """Losses in bits per token, and how often a draft is the main head's own choice, over windows of held-out text."""
    sums: dict[str, float] = {}
    for part in windows.split(8):
        found = predict(stage, part)
        greedy = [unflatten(x.argmax(-1), 0, (len(part), -1)) for x in (found.main, *found.drafts)]
        bits = [float(loss) / math.log(2) for loss in losses(found, part)]
        values: dict[str, float] = dict(zip(HEADS, bits, strict=True))
        first = greedy[1][:, :-1] == greedy[0][:, 1:]
        second = greedy[2][:, :-2] == greedy[0][:, 2:]
        values["accepted_1"] = float(first.float().mean())
        values["accepted_2"] = float((second & first[:, :-1]).float().mean())
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value * len(part) / len(windows)
    return sums


def train(rank: int, run: Run, meeting: str) -> None:
    """One worker's run; the first one speaks, measures and writes."""
    torch.set_num_threads(1)
    if run.workers > 1:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=run.workers)
    config, stage = trainable_model()
    initialise(stage, run.seed)
    if run.compiled:
        fuse_mixes(stage)
    files = list(stdlib_files())
    text = Text([content for name, content in files if not is_held_out(name)])
    held = [content for name, content in files if is_held_out(name)]
    watched = pieces(held, run.window, 16)
    gradients = Gradients([p for path, p in stage.named_parameters() if is_learned(path)])
    optimizer, balance, indexers = optimizer_of(stage), Balance(stage), IndexerLoss(stage)
    journal, clock, index = Journal(run.log if rank == 0 else None), Clock(run.minutes), 0
    while (progress := clock.progress()) < 1:
        share = rate_at(progress)
        for group in optimizer.param_groups:
            group["lr"] = run.rate * share
        early = progress < EARLY
        set_phase(stage, config.model, early=early)
        drafts, length = (1, run.length // 2) if early else (len(DRAFT_WEIGHTS), run.length)
        windows = text.windows(run.sequences, length + drafts + 1, seed_of(run.seed, index, rank))
        parts = losses(predict(stage, windows, drafts), windows)
        indexed = indexers.take()
        total = parts[0] + INDEX_WEIGHT * indexed
        for weight, part in zip(DRAFT_WEIGHTS, parts[1:], strict=False):
            total = total + weight * part
        total.backward()
        norm = gradients.settle()
        optimizer.step()
        gradients.flat.zero_()
        heaviest, index = balance.move(BIAS_RATE * share), index + 1
        entry = {"step": index, "seconds": clock.seconds, "rate": optimizer.param_groups[0]["lr"]}
        entry |= {name: part.item() / math.log(2) for name, part in zip(HEADS, parts, strict=False)}
        journal.write({**entry, "indexer": indexed.item(), "norm": norm, "heaviest": heaviest})
        if rank == 0 and index % run.every == 0:
            set_phase(stage, config.model, early=False)
            journal.write({"step": index, "seconds": clock.seconds, "held_out": evaluate(stage, watched)}, loud=True)
            export(config, stage, run.out)
    if rank == 0:
        export(config, stage, run.out)
        round_as_stored(stage)
        set_phase(stage, config.model, early=False)
        whole = evaluate(stage, pieces(held, run.window, 200))
        sizes = {"trained_bytes": len(text.tokens), "held_out_bytes": sum(map(len, held)), "held_out_files": len(held)}
        journal.write({"step": index, "seconds": clock.seconds, "final": whole, **sizes}, loud=True)
    if run.workers > 1:
        dist.barrier()
        dist.destroy_process_group()


class Journal:
    """A line of JSON per entry, in a file if there is one; loud entries on standard error too."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.write_text("")

    def write(self, entry: dict[str, Any], *, loud: bool = False) -> None:
        """Add an entry."""
        line = json.dumps(entry, default=float)
        if self.path is not None:
            with self.path.open("a") as stream:
                stream.write(line + "\n")
        if loud:
            sys.stderr.write(line + "\n")


# The files ------------------------------------------------------------------------------------------------------------


def official_tensors(stage: Stage) -> dict[str, Tensor]:
    """Every tensor of the official layout by name, in the dtype in which it is stored."""
    held = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
    tensors: dict[str, Tensor] = {}
    for declared in walk(stage.files):
        if declared.tensor.origin is not Origin.CHECKPOINT:
            continue
        values = held[declared.path].detach().to(TORCH_DTYPES[declared.tensor.dtype])
        parts = list(values) if declared.tensor.stacked else [values]
        for name, part in zip(declared.official_names(), parts, strict=True):
            tensors[name] = part.contiguous()
    return tensors


@torch.no_grad()
def round_as_stored(stage: Stage) -> None:
    """Give every weight the value that its file will hold."""
    held = dict(stage.named_parameters())
    for declared in walk(stage.files):
        if declared.path in held:
            held[declared.path].copy_(held[declared.path].to(TORCH_DTYPES[declared.tensor.dtype]))


def export(config: BuildConfig, stage: Stage, folder: Path) -> None:
    """Write the checkpoint: weights, config.json, generation_config.json, tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(official_tensors(stage), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    model = config.model
    documents: dict[str, object] = {
        "config.json": official_config(model, {}, "native", drafter_blocks=1),
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False},
        "tokenizer.json": tokenizer_json(),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


# The command ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the command line and start the workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--log", type=Path, help="file for the losses, a line of JSON for each step")
    parser.add_argument("--minutes", type=float, default=35, help="how long; the learning rate follows the clock")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--sequences", type=int, default=2, help="windows for each worker and step")
    parser.add_argument("--length", type=int, default=512, help="bytes of a window")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=200, help="steps between two looks at held-out text")
    parser.add_argument("--compiled", action="store_true", help="compile the hyper-connections; takes a minute first")
    run = Run(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        if run.workers == 1:
            train(0, run, meeting)
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            spawn(train, (run, meeting), nprocs=run.workers)


if __name__ == "__main__":
    main()
