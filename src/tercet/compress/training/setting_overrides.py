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
        found[key] = yaml.safe_load(value)
    return found


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
        raise PlanError(f"{where} = {first['input']!r}: {first['msg']}") from error
