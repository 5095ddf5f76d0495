"""Load: the catalog's models by name."""

from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from tercet.errors import UnsupportedError, unknown_name
from tercet.kernel.model_shape import ModelShape
from tercet.models.catalog.entry import CatalogEntry

_FOLDER = Path(__file__).parent


@cache
def _paths() -> dict[str, Path]:
    """Each file below this folder by its name: one a model."""
    return {path.stem: path for path in sorted(_FOLDER.rglob("*.yaml"))}


@cache
def names() -> tuple[str, ...]:
    """Every model, from the least to the most parameters."""
    return tuple(sorted(_paths(), key=lambda name: read(name).parameters))


@cache
def read(name: str) -> CatalogEntry:
    """The published configuration. UnsupportedError for an unknown name, or a file that is none."""
    paths = _paths()
    if name not in paths:
        raise UnsupportedError(unknown_name("model", name, paths))
    path = paths[name]
    try:
        return CatalogEntry.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise UnsupportedError(f"{path.name} is not a catalog entry: {error}") from error


def load(name: str, tensor_parallel: int = 1, tokens: int = 16384) -> ModelShape:
    """The model's shape on one of `tensor_parallel` GPUs, for calls of so many tokens.

    UnsupportedError for an unknown name (with the nearest ones), or numbers below 1.
    """
    return read(name).shape(name, tensor_parallel, tokens)
