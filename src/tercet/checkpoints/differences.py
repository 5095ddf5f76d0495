"""Differences: the settings in which two runs differ, in words."""

import reprlib
from typing import Any


def differences(name: str, found: Any, now: Any) -> list[str]:
    """Each setting in which two values of JSON differ, by its path: "plan.rules[0].format"."""
    kinds: set[Any] = {type(found), type(now)}
    if kinds == {dict}:
        keys = sorted(found.keys() | now.keys())
        parts = [(f"{name}.{key}", found.get(key), now.get(key)) for key in keys]
    elif kinds == {list} and len(found) == len(now):
        parts = [(f"{name}[{index}]", found[index], now[index]) for index in range(len(now))]
    elif kinds == {list}:
        return [f"{name}: {len(found)} of them, now {len(now)}"]
    else:
        return [] if found == now else [f"{name} {reprlib.repr(found)}, now {reprlib.repr(now)}"]
    return [line for part in parts for line in differences(*part)]
