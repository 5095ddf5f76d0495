"""The machine and the libraries under which something was measured."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict

from tercet.environment import usable_cores
from tercet.version import VERSION

_LIBRARIES = ("torch", "triton", "transformers", "numpy")


class Environment(BaseModel):
    """One machine and its software, as far as they decide a measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processor: str
    cores: int
    memory_bytes: int
    accelerator: str | None = None
    system: str
    python: str
    libraries: dict[str, str]

    @classmethod
    def here(cls, accelerator: str | None = None) -> "Environment":
        """The environment of this process."""
        return cls(
            processor=_processor(),
            cores=usable_cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            accelerator=accelerator,
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            libraries={
                "tercet": VERSION,
                **{name: found for name in _LIBRARIES if (found := _version(name))},
            },
        )


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
