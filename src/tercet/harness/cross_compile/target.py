"""Target: the GPUs that kernels are compiled for."""

from dataclasses import dataclass

from tercet.errors import UnsupportedError, unknown_name

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# CUDA C++ Programming Guide, technical specifications; AMD CDNA 3 ISA, LDS
_SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
# which target a device's tuned table is for, by how a word of the device's name begins
_DEVICES = {
    "a100": "sm_80",
    "h100": "sm_90",
    "h200": "sm_90",
    "gh200": "sm_90",
    "b200": "sm_100",
    "gb200": "sm_100",
    "mi300": "gfx942",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A GPU architecture.

    Attributes:
        name: as the report names it.
        backend: "cuda" or "hip".
        arch: compute capability as Triton writes it (90), or the AMD name.
        warp: threads of a warp.
        shared_bytes: the most shared memory that a block can have.
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared_bytes: int

    @property
    def capability(self) -> tuple[int, int] | None:
        """(major, minor) of a CUDA target."""
        return divmod(self.arch, 10) if isinstance(self.arch, int) else None


def target_of(name: str) -> Target:
    """The target of that name. UnsupportedError for an unknown one."""
    if name not in TARGETS:
        raise UnsupportedError(unknown_name("target", name, TARGETS))
    shared = _SHARED_BYTES[name]
    if name.startswith("sm_"):
        arch = int(name[3:])
        return Target(name=name, backend="cuda", arch=arch, warp=32, shared_bytes=shared)
    return Target(name=name, backend="hip", arch=name, warp=64, shared_bytes=shared)


def targets_of_device(device: str) -> tuple[str, ...]:
    """The target that a device (`nvidia-h200`) is; all where its name is not known."""
    words = device.lower().split("-")
    found = {
        target for name, target in _DEVICES.items() if any(word.startswith(name) for word in words)
    }
    return tuple(found) or TARGETS
