"""Which linear layers an engine multiplies as one: their formats have to agree."""

from collections.abc import Container

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""The name that the product has in an engine, and the checkpoint's names of its parts."""


def fused_siblings(module: str, known: Container[str]) -> list[str]:
    """The modules among `known` that engines fuse with this one, itself included."""
    parent, _, own = module.rpartition(".")
    names = next((group for group in _FUSED.values() if own in group), (own,))
    paths = [f"{parent}.{name}" if parent else name for name in names]
    return [path for path in paths if path in known]


def fused_name(module: str) -> str | None:
    """What an engine calls the product that this module is a part of; None where it stands alone.

    A module on its own (an up_proj without a gate) has the name too: nothing else is called so.
    """
    return next((name for name, group in _FUSED.items() if module.split(".")[-1] in group), None)
