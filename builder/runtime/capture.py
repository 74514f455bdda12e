"""A look at what any part of a model puts out."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from builder.components.stage.module import Stage

STREAM = "stream"
"""The residual stream after the stage's last layer, before hc_head: [tokens, hc_mult, hidden]."""


@contextmanager
def capture(stage: Stage, paths: Iterable[str]) -> Generator[dict[str, list[Any]]]:
    """Collect the outputs of the parts at ``paths`` (``layers.3.attn``), one per call, while the block runs.

    ``stream`` stands for the stream that leaves the last layer. Raises ValueError for a path that is not there.
    """
    found: dict[str, list[Any]] = {path: [] for path in paths}
    hooks = [_module(stage, path).register_forward_hook(_keep(found[path])) for path in found]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _module(stage: Stage, path: str) -> nn.Module:
    names: dict[str, nn.Module] = dict(stage.named_modules(remove_duplicate=False))  # pyright: ignore[reportUnknownArgumentType]
    wanted = f"layers.{stage.spec.last}" if path == STREAM else path
    if wanted not in names or not wanted:
        near = [name for name in names if name.startswith(wanted.rsplit(".", 1)[0])][:5]
        raise ValueError(f"{path} is no part of this stage" + (f"; near it: {', '.join(near)}" if near else ""))
    return names[wanted]


def _keep(outputs: list[Any]) -> Any:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # A copy: the stash is written again by the next step.
        outputs.append(output.clone() if isinstance(output, Tensor) else output)

    return hook
