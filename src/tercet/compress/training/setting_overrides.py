"""Setting overrides: `--set KEY=VALUE` words, on top of defaults."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tercet.errors import PlanError, unknown_name

Model = TypeVar("Model", bound=BaseModel)


def parse_overrides(words: Iterable[str], models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """KEY=VALUE words as a mapping, each value as YAML reads it.

    Raises:
        PlanError: no "=", or a key that none of the models has.
    """
    known = {name for model in models for name in model.model_fields}
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise PlanError(f"--set {word!r}: write KEY=VALUE, as in --set warmup=100")
        if key not in known:
            raise PlanError(f"--set {word!r}: {unknown_name('setting', key, known)}")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PlanError(f"--set {word!r}: the value is no YAML") from error
    return found


def merge_options(found: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Overrides together with the options that are given, which are not None.

    Raises:
        PlanError: a setting is given both ways.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if both := sorted(given.keys() & found.keys()):
        name = both[0]
        raise PlanError(
            f"--set {name}={found[name]} and --{name.replace('_', '-')} {given[name]}: give one"
        )
    return {**found, **given}


def build_settings(model: type[Model], values: Mapping[str, Any]) -> Model:
    """The model of those of its fields that are given and not None.

    Raises:
        PlanError: a value that does not fit, with the field's name.
    """
    own = {k: v for k, v in values.items() if k in model.model_fields and v is not None}
    try:
        return model.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        example = f": write --set '{where}=[A,B]'" if first["type"] == "tuple_type" else ""
        start = f"{where} = {first['input']!r}: " if where else ""
        raise PlanError(f"{start}{said}{example}") from error
