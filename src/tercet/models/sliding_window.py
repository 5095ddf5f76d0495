"""Sliding-window attention: which layers see only so many positions back."""

from collections.abc import Callable, Mapping
from typing import cast

from tercet.errors import CheckpointError

SLIDING, FULL = "sliding_attention", "full_attention"

WindowRule = Callable[[Mapping[str, object], int], int | None]
"""(config.json, layer) -> positions that a query sees, its own included; None for all of them."""


def no_window(config: Mapping[str, object], layer: int) -> int | None:
    """Every layer sees every position."""
    return None


def every_layer(config: Mapping[str, object], layer: int) -> int | None:
    """Every layer sees `sliding_window` positions, where the config sets it."""
    window = config.get("sliding_window")
    return window if isinstance(window, int) else None


def if_switched_on(config: Mapping[str, object], layer: int) -> int | None:
    """Every layer, where `use_sliding_window` says so."""
    return every_layer(config, layer) if config.get("use_sliding_window") else None


def every_other_layer(config: Mapping[str, object], layer: int) -> int | None:
    """As `layer_types` says; without it, the even layers below `max_window_layers`, if at all."""
    if not config.get("use_sliding_window"):
        return None
    first = config.get("max_window_layers", 0)
    usual = isinstance(first, int) and layer < first and layer % 2 == 0
    return _window_of(config, layer, usual)


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


def by_layer_type(period: int, key: str | None = None) -> WindowRule:
    """As `layer_types` says; without it, every layer but each `period`-th slides.

    Args:
        period: of layers that see everything.
        key: of config.json that goes before `period`, in older files; None where there is none.
    """

    def rule(config: Mapping[str, object], layer: int) -> int | None:
        sliding = layer_type(config, layer, period, key) == SLIDING
        return every_layer(config, layer) if sliding else None

    return rule


def layers_that_do_not_rotate(period: int) -> WindowRule:
    """As `layer_types` says; without it, the layers that do not rotate, if switched on.

    Args:
        period: see `rotates`.
    """

    def rule(config: Mapping[str, object], layer: int) -> int | None:
        switched_on = bool(config.get("use_sliding_window"))
        return _window_of(config, layer, switched_on and not rotates(config, layer, period))

    return rule


def _window_of(config: Mapping[str, object], layer: int, usual: bool) -> int | None:
    """As `layer_types` says; without it, what it usually does."""
    if config.get("layer_types") is not None:
        usual = layer_type(config, layer, 1) == SLIDING
    return every_layer(config, layer) if usual else None


def rotates(config: Mapping[str, object], layer: int, period: int) -> bool:
    """Whether a layer has rotary positions.

    Args:
        config: config.json, with `no_rope_layers` (a 0 for each layer that has none) or
            `no_rope_layer_interval`.
        layer: which.
        period: that interval where config.json has none.

    Raises:
        CheckpointError: either is none that a model can have.
    """
    listed = config.get("no_rope_layers")
    if listed is None:
        return bool((layer + 1) % _read_period(config, period, "no_rope_layer_interval"))
    found = cast(list[object], listed) if isinstance(listed, list) else []
    if layer >= len(found) or found[layer] not in (0, 1):
        raise CheckpointError(
            f"config.json: no_rope_layers {listed!r}: must say 1 or 0 of each layer, and does not "
            f"of layer {layer}"
        )
    return bool(found[layer])


def layer_type(
    config: Mapping[str, object], layer: int, period: int, key: str | None = None
) -> str:
    """What transformers calls the attention of a layer: SLIDING or FULL.

    Args:
        config: config.json.
        layer: which.
        period: see `by_layer_type`.
        key: likewise.

    Raises:
        CheckpointError: `layer_types` or what `key` names is none that a model can have.
    """
    types = config.get("layer_types")
    if types is None:
        period = period if key is None else _read_period(config, period, key)
        return SLIDING if (layer + 1) % period else FULL
    named = cast(list[object], types) if isinstance(types, list) else []
    found = named[layer] if layer < len(named) else None
    if found not in (SLIDING, FULL):
        raise CheckpointError(
            f"config.json: layer_types {types!r}: must say {SLIDING!r} or {FULL!r} of each layer, "
            f"and says {found!r} of layer {layer}"
        )
    return str(found)


def _read_period(config: Mapping[str, object], default: int, key: str) -> int:
    period = config.get(key, default)
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise CheckpointError(f"config.json: {key} {period!r}: must be a whole number above 0")
    return period
