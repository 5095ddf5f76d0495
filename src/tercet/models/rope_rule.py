"""Rotary positions by layer: which part of config.json says how a layer rotates."""

from collections.abc import Callable, Mapping
from typing import cast

from tercet.models.sliding_window import FULL, SLIDING, layer_type, rotates

NO_ROPE = "none"
"""The rope type of layers that do not rotate, which no config.json has."""

RopeRule = Callable[[Mapping[str, object], int], Mapping[str, object]]
"""(config.json, layer) -> what `decoder.rope.frequencies` reads: like a config.json with one kind
of rotation. Layers that rotate alike get equal ones."""


def rope_parameters(config: Mapping[str, object]) -> dict[str, object]:
    """How layers of one kind rotate, as transformers reads it: with rope_type and rope_theta.

    `rope_scaling` replaces `rope_parameters` where it says anything, with its base; what neither
    has stands beside them.

    Args:
        config: like a config.json, as a RopeRule gives it.
    """
    section = _section(config, "rope_scaling") or _section(config, "rope_parameters")
    found: dict[str, object] = {"rope_theta": config.get("rope_theta", 10000.0)}
    if "partial_rotary_factor" in config:
        found["partial_rotary_factor"] = config["partial_rotary_factor"]
    found.update(section)
    found["rope_type"] = section.get("rope_type", section.get("type", "default"))
    if found["rope_type"] == "llama3":
        found["original_max_position_embeddings"] = (
            config.get("original_max_position_embeddings")
            or section.get("original_max_position_embeddings")
            or config.get("max_position_embeddings")
        )
    return found


def _section(config: Mapping[str, object], key: str) -> dict[str, object]:
    """A copy; empty where there is none."""
    section = config.get(key)
    return dict(cast(Mapping[str, object], section)) if isinstance(section, Mapping) else {}


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


def by_layer_type(period: int, key: str, *, local: float, far: float) -> RopeRule:
    """Sliding layers rotate by a base of their own, never scaled; the others by the model's.

    `rope_parameters` has a section for each kind of layer, and `rope_scaling` is put over that of
    the others; older files have `rope_local_base_freq` for the sliding ones, `rope_theta` and
    `rope_scaling` for the others.

    Args:
        period: see `sliding_window.by_layer_type`.
        key: likewise.
        local: the base of sliding layers where config.json has none.
        far: the base of the other layers, likewise.
    """

    def rule(config: Mapping[str, object], layer: int) -> Mapping[str, object]:
        kind = layer_type(config, layer, period, key)
        theta = ("rope_local_base_freq", local) if kind == SLIDING else ("rope_theta", far)
        found: dict[str, object] = {"rope_theta": config.get(*theta)}
        if "max_position_embeddings" in config:
            found["max_position_embeddings"] = config["max_position_embeddings"]
        own = _section(_section(config, "rope_parameters"), kind)
        scaling = _section(config, "rope_scaling") if kind == FULL else {}
        return {**found, "rope_parameters": {"rope_type": "default", **own, **scaling}}

    return rule
