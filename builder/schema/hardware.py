"""The hardware group: a vendor and its devices, with the facts a plan needs of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.errors import Problem
from builder.schema.fields import field_problems, one_of, setting

CUSTOM_DEVICE = "custom"
VENDORS = ("nvidia", "amd", "xpu", "cpu")


@dataclass(slots=True, kw_only=True)
class DeviceConfig:
    """One device model. ``memory_bytes`` as its driver reports it, ``source`` says where that was read."""

    memory_bytes: int | None = setting(None, least=1)
    arch: str = setting()
    fp8: str = setting(choices=("none", "e4m3fn", "e4m3fnuz"))
    native_fp4: bool = setting()
    unified_memory: bool = setting(False)
    source: str = setting()


@dataclass(slots=True, kw_only=True)
class HardwareConfig:
    """``memory_bytes`` set by the user wins over the device's own; null memory (cpu) means: no limit is checked."""

    vendor: str = setting(choices=VENDORS)
    device: str = setting()
    memory_bytes: int | None = setting(None, least=1)
    offload: str = setting("none", choices=("none", "cpu", "disk"))
    devices: dict[str, DeviceConfig] = setting({})

    @property
    def total_bytes(self) -> int | None:
        """Bytes of one device, or None where there is no device memory to speak of (cpu)."""
        if not self.has_device_memory:
            return None
        if self.memory_bytes is not None:
            return self.memory_bytes
        return self.devices[self.device].memory_bytes if self.device in self.devices else None

    @property
    def has_device_memory(self) -> bool:
        """False on cpu: the plan then reports sizes and judges nothing."""
        return self.vendor != "cpu"


def hardware_problems(hardware: HardwareConfig) -> Iterator[Problem]:
    """An unknown device, a custom one without memory, and numbers out of range."""
    yield from field_problems(hardware, "hardware")
    known = [*hardware.devices, CUSTOM_DEVICE]
    if hardware.device == CUSTOM_DEVICE:
        if hardware.memory_bytes is None and hardware.has_device_memory:
            yield Problem(
                "hardware.device",
                CUSTOM_DEVICE,
                "a custom device needs its memory in bytes",
                "add hardware.memory_bytes=N",
            )
    elif hardware.device not in hardware.devices:
        yield Problem(
            "hardware.device",
            hardware.device,
            f"hardware={hardware.vendor} has no such device",
            one_of(known, hardware.device),
        )
