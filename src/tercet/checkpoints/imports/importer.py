"""What every importer offers, and how importers are found.

An importer is a module of `tercet.checkpoints.imports`, `NAME.py` or a folder `NAME`, with an
`IMPORTER`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

from tercet.checkpoints.sources.safetensors_directory import read_json

CONFIG_NAME = "config.json"


class Convert(Protocol):
    """Writes the packed checkpoint `out` from the quantized one at `path`, without loss.

    Raises:
        UnsupportedError: it is held in a way that no scheme has.
        CheckpointError: it is damaged, or `out` is in the way.
    """

    def __call__(self, path: Path, out: Path, *, overwrite: bool = False) -> object: ...


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One kind of quantized checkpoint that Tercet reads.

    Attributes:
        name: what its users call it: "awq".
        matches: whether what lies at a path is of this kind; raises nothing where nothing lies
            there.
        convert: makes a packed checkpoint of it.
    """

    name: str
    matches: Callable[[Path], bool]
    convert: Convert


def importers() -> tuple[Importer, ...]:
    """Every importer there is, by name."""
    package = __package__ or ""
    names = [module.name for module in iter_modules(import_module(package).__path__)]
    modules: list[Any] = [import_module(f"{package}.{name}") for name in names]
    found: list[Importer] = [one.IMPORTER for one in modules if hasattr(one, "IMPORTER")]
    return tuple(sorted(found, key=lambda importer: importer.name))


def find_importer(path: Path) -> Importer | None:
    """The importer that reads what lies at `path`; None where none does."""
    return next((importer for importer in importers() if importer.matches(path)), None)


def quantization_method(directory: Path) -> str | None:
    """`quantization_config.quant_method` of config.json; None where nothing is quantized.

    Raises:
        CheckpointError: config.json is missing or damaged.
    """
    section = read_json(directory / CONFIG_NAME).get("quantization_config")
    return str(section.get("quant_method")) if isinstance(section, dict) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


def matches_method(method: str) -> Callable[[Path], bool]:
    """Matches directories whose config.json names that `quant_method`."""
    return partial(_has_method, method)


def _has_method(method: str, path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() and quantization_method(path) == method
