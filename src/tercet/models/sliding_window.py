"""Sliding-window attention: which layers see only so many positions back."""

from collections.abc import Callable, Mapping
from typing import cast

WindowRule = Callable[[Mapping[str, object], int], int | None]
"""(config.json, layer) -> positions that a query sees, its own included; None for all of them."""


def no_window(config: Mapping[str, object], layer: int) -> int | None:
    """Every layer sees every position."""
    return None


def every_layer(config: Mapping[str, object], layer: int) -> int | None:
    """Every layer sees `sliding_window` positions, where the config sets it."""
    window = config.get("sliding_window")
    return window if isinstance(window, int) else None


def upper_layers(config: Mapping[str, object], layer: int) -> int | None:
    """As `layer_types` says; without it, the layers from `max_window_layers` on, if switched on."""
    if not config.get("use_sliding_window"):
        return None
    types = config.get("layer_types")
    if isinstance(types, list):
        sliding = cast(list[str], types)[layer] == "sliding_attention"
    else:
        first = config.get("max_window_layers", 0)
        sliding = isinstance(first, int) and layer >= first
    return every_layer(config, layer) if sliding else None
