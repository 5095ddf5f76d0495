"""Decoder architectures, one file each: a module here with an `ARCHITECTURE` is an architecture."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from tercet.errors import UnsupportedError, unknown_name
from tercet.models.architecture import Architecture


def architecture_names() -> list[str]:
    """The `model_type` of every architecture that the lean decoder runs."""
    return sorted(module.name for module in iter_modules(__path__))


def supported_architecture(config: Mapping[str, object]) -> bool:
    """Whether the lean decoder knows the `model_type` of config.json."""
    return config.get("model_type") in architecture_names()


def find_architecture(config: Mapping[str, object]) -> Architecture:
    """The architecture that config.json names; UnsupportedError lists those there are."""
    name = str(config.get("model_type"))
    if not supported_architecture(config):
        raise UnsupportedError(
            f"{unknown_name('decoder architecture', name, architecture_names())}; load others with "
            f"transformers: from_pretrained(directory) of a class for them, AutoModelForCausalLM "
            f"or another, after import tercet"
        )
    return import_module(f"{__name__}.{name}").ARCHITECTURE
