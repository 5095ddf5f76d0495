"""Numbers that JSON has not: transformers writes them as objects in config.json."""

from math import inf, nan
from typing import Any, cast

_TAG = "__float__"
_VALUES = {"Infinity": inf, "-Infinity": -inf, "NaN": nan}


def decode_floats(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with {"__float__": "Infinity"} and the like as numbers."""
    return {key: _decoded(value) for key, value in config.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    section = cast("dict[str, Any]", value)
    if set(section) == {_TAG} and section[_TAG] in _VALUES:
        return _VALUES[section[_TAG]]
    return decode_floats(section)
