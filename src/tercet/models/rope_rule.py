"""Rotary positions by layer: which part of config.json says how a layer rotates."""

from collections.abc import Callable, Mapping
from typing import cast

from tercet.models.sliding_window import FULL, SLIDING, layer_type, rotates

NO_ROPE = "none"
"""The rope type of layers that do not rotate, which no config.json has."""

RopeRule = Callable[[Mapping[str, object], int], Mapping[str, object]]
"""(config.json, layer) -> what `decoder.rope.frequencies` reads: like a config.json with one kind
of rotation. Layers that rotate alike get equal ones."""


# replaces what scales a rotation: positions that turn nothing
_UNTURNED: Mapping[str, object] = {"rope_scaling": None, "rope_parameters": {"rope_type": NO_ROPE}}


def one_rope(config: Mapping[str, object], layer: int) -> Mapping[str, object]:
    """Every layer rotates as config.json says."""
    return config


def some_layers(period: int) -> RopeRule:
    """Layers rotate as config.json says, or not at all.

    Which do not, `sliding_window.rotates` says.

    Args:
        period: the interval where config.json has none.
    """

    def rule(config: Mapping[str, object], layer: int) -> Mapping[str, object]:
        return config if rotates(config, layer, period) else {**config, **_UNTURNED}

    return rule


def by_layer_type(period: int, local: float, far: float) -> RopeRule:
    """Sliding layers rotate by a base of their own, never scaled; the others by the model's.

    `rope_parameters` has a section for each kind of layer; older files have `rope_local_base_freq`
    for the sliding ones, `rope_theta` and `rope_scaling` for the others.

    Args:
        period: see `sliding_window.layer_type`.
        local: the base of sliding layers where config.json has none.
        far: the base of the other layers, likewise.
    """

    def rule(config: Mapping[str, object], layer: int) -> Mapping[str, object]:
        kind = layer_type(config, layer, period)
        theta = ("rope_local_base_freq", local) if kind == SLIDING else ("rope_theta", far)
        found: dict[str, object] = {"rope_theta": config.get(*theta)}
        if kind == FULL and isinstance(config.get("rope_scaling"), Mapping):
            found["rope_scaling"] = config["rope_scaling"]
        sections = config.get("rope_parameters")
        section = cast(Mapping[str, object], sections).get(kind) if sections else None
        if isinstance(section, Mapping):
            found["rope_parameters"] = cast(Mapping[str, object], section)
        return found

    return rule
