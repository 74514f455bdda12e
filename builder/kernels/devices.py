"""Which accelerator this machine has, as torch sees it."""

from __future__ import annotations

TORCH_DEVICES = {"nvidia": "cuda", "amd": "cuda", "xpu": "xpu", "cpu": "cpu"}
"""torch's word for a vendor's devices."""


def found_vendor() -> str:
    """The vendor of the accelerator that torch finds, or ``cpu``. Imports torch."""
    import torch

    if torch.cuda.is_available():
        return "amd" if torch.version.hip else "nvidia"
    return "xpu" if torch.xpu.is_available() else "cpu"
