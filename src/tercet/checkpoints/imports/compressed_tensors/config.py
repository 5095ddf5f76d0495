"""The `quantization_config` of a compressed-tensors checkpoint, as far as Tercet understands it."""

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tercet.errors import CheckpointError

METHOD = "compressed-tensors"


class Weights(BaseModel):
    """How the weights of a group are held; keys of observers and dtypes do not matter here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    strategy: Literal["tensor", "channel", "group", "tensor_group", "block"] = "tensor"
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None


class Activations(BaseModel):
    """How the inputs of a group are quantized."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_bits: int = 8
    type: Literal["int", "float"] = "int"
    symmetric: bool = True
    strategy: str = "token"
    dynamic: bool | str = True


class Group(BaseModel):
    """Modules of one kind.

    Attributes:
        targets: module names, `re:` and a regular expression, or a class ("Linear").
        weights: how their weights are held.
        input_activations: how their inputs are quantized.
        format: how they are stored; None for the format of the whole checkpoint.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    targets: tuple[str, ...]
    weights: Weights | None = None
    input_activations: Activations | None = None
    output_activations: dict[str, Any] | None = None
    format: str | None = None


class Section(BaseModel):
    """The whole section.

    Attributes:
        config_groups: the groups; the first that matches a module counts.
        format: how modules are stored whose group does not say.
        ignore: modules that are left as they are, named as targets are.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    quant_method: Literal["compressed-tensors"] = METHOD
    config_groups: dict[str, Group]
    format: str = "pack-quantized"
    ignore: tuple[str, ...] = ()
    kv_cache_scheme: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None

    def group(self, module: str) -> Group | None:
        """The group of a module: by name, by pattern, then by class; None where none applies."""
        if any(_matches(module, target) for target in self.ignore):
            return None
        groups = list(self.config_groups.values())
        for group in groups:
            if any(_matches(module, target) for target in group.targets):
                return group
        return next((group for group in groups if "Linear" in group.targets), None)


def _matches(module: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def read_section(config: dict[str, Any], place: str) -> Section:
    """The section of config.json; CheckpointError names the key that cannot be read."""
    try:
        return Section.model_validate(config.get("quantization_config"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"{place}: config.json: quantization_config.{where}: {first['msg']} "
            f"(found {first['input']!r})"
        ) from error
