"""Device state: clocks, power, temperature and throttling of the GPU, by nvidia-smi."""

import subprocess
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict

_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)
# Reasons that slow a GPU under load: power cap, hardware slow-down, heat (software and hardware),
# power brake. Idle and application clocks are no throttling.
_THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
_SECONDS = 10.0


class DeviceState(BaseModel):
    """A GPU at one moment.

    Attributes:
        clock_mhz, memory_clock_mhz: of the multiprocessors and of the memory.
        power_w, temperature_c: drawn by the board; of the chip.
        reasons: nvidia-smi's bit mask of what holds the clock down.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clock_mhz: float
    memory_clock_mhz: float
    power_w: float
    temperature_c: float
    reasons: int

    @property
    def throttled(self) -> bool:
        """Whether power or heat holds the clock down."""
        return bool(self.reasons & _THROTTLED)


def device_state(device: str) -> DeviceState | None:
    """The state of the current GPU; None on a CPU and where nvidia-smi does not tell."""
    if device == "cpu":
        return None
    command = ("nvidia-smi", f"--id={_identity()}", f"--query-gpu={','.join(_FIELDS)}",
               "--format=csv,noheader,nounits")  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout)


def parse(line: str) -> DeviceState | None:
    """One line of nvidia-smi's answer; None where a field is not supported."""
    try:
        clock, memory, power, temperature, reasons = (part.strip() for part in line.split(","))
        return DeviceState(
            clock_mhz=float(clock),
            memory_clock_mhz=float(memory),
            power_w=float(power),
            temperature_c=float(temperature),
            reasons=int(reasons, 16),
        )
    except ValueError:
        return None


def state_metrics(*seen: DeviceState | None) -> dict[str, float]:
    """For a record: the last clock and heat, the largest power, whether any was throttled."""
    states = [state for state in seen if state is not None]
    if not states:
        return {}
    last = states[-1]
    return {
        "clock_mhz": last.clock_mhz,
        "memory_clock_mhz": last.memory_clock_mhz,
        "power_w": max(state.power_w for state in states),
        "temperature_c": last.temperature_c,
        "throttled": float(any(state.throttled for state in states)),
    }


def _identity() -> str:
    """By UUID: CUDA_VISIBLE_DEVICES renumbers the GPUs, nvidia-smi does not."""
    index = torch.cuda.current_device()
    properties = cast(Any, torch.cuda.get_device_properties(index))
    uuid = getattr(properties, "uuid", None)
    return str(index) if uuid is None else f"GPU-{uuid}"
