"""Rotary position embedding (arXiv:2104.09864): its frequencies and the rotation.

Heads are laid out in halves: of 2 R elements that turn, element i turns with i + R, as in the
checkpoints of the Hugging Face hub.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import CheckpointError, UnsupportedError, unknown_name
from tercet.models.architecture import Architecture
from tercet.models.rope_rule import NO_ROPE, rope_parameters

Angles = tuple[Tensor, Tensor]
"""cos [T, 1, 2 R] and sin [T, 1, 2 R], the first half of sin negated."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotations:
    """The kinds of rotation that the layers of a decoder have.

    Attributes:
        kinds: of each kind what `frequencies` gives.
        of_layer: the kind of each layer.
    """

    kinds: tuple[Tensor, ...]
    of_layer: tuple[int, ...]


def read_rotations(
    architecture: Architecture, config: Mapping[str, object], layers: int, head_dim: int
) -> Rotations:
    """How each of so many layers rotates; raises as `frequencies`."""
    found: list[Mapping[str, object]] = []
    of_layer: list[int] = []
    given = {**architecture.defaults, **config}
    for layer in range(layers):
        one = architecture.rope(given, layer)
        if one not in found:
            found.append(one)
        of_layer.append(found.index(one))
    partial = architecture.partial_rotary
    kinds = tuple(frequencies(one, head_dim, partial=partial) for one in found)
    return Rotations(kinds=kinds, of_layer=tuple(of_layer))


def frequencies(config: Mapping[str, object], head_dim: int, *, partial: bool) -> Tensor:
    """Radians per position of each pair of elements that turn, [R] in float32.

    R is D / 2; less with a `partial_rotary_factor`: then the first 2 R elements of a head turn.
    All are 0 in a layer without rotation.

    Args:
        config: as `rope_rule.rope_parameters` takes it.
        head_dim: D, even.
        partial: whether the factor counts, as `Architecture` has it.
    """
    parameters = rope_parameters(config)
    kind = str(parameters["rope_type"])
    if kind == NO_ROPE:
        return torch.zeros(head_dim // 2)
    if kind not in _SCALINGS:
        known = unknown_name("rope type", kind, _SCALINGS)
        raise UnsupportedError(f"{known}; load such a model with transformers")
    share = _number({"partial_rotary_factor": 1.0, **parameters}, "partial_rotary_factor")
    if not partial and share != 1.0:
        if kind != "default":
            raise UnsupportedError(
                f"rope type {kind!r} with partial_rotary_factor {share}: a model of this "
                f"architecture rotates whole heads, which transformers does not scale by a part; "
                f"remove partial_rotary_factor from config.json"
            )
        share = 1.0
    turned = int(head_dim * share)
    if turned % 2 or not 0 < turned <= head_dim:
        raise UnsupportedError(
            f"a rotation of {turned} of a head's {head_dim} elements (partial_rotary_factor "
            f"{share}): an even number from 2 to head_dim is supported"
        )
    pairs = torch.arange(0, turned, 2, dtype=torch.float32) / turned
    plain = 1.0 / _number(parameters, "rope_theta") ** pairs
    return _SCALINGS[kind](plain, parameters)


def _number(parameters: Mapping[str, object], key: str) -> float:
    value = parameters.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"config.json: rope {key} {value!r}: must be a number above 0")
    return float(value)


def _default(plain: Tensor, parameters: Mapping[str, object]) -> Tensor:
    return plain


def _linear(plain: Tensor, parameters: Mapping[str, object]) -> Tensor:
    return plain / _number(parameters, "factor")


def _llama3(plain: Tensor, parameters: Mapping[str, object]) -> Tensor:
    """Slow turns are divided by `factor`, fast ones kept, those between blended (Llama 3.1)."""
    factor = _number(parameters, "factor")
    low, high = (_number(parameters, f"{end}_freq_factor") for end in ("low", "high"))
    turns = _number(parameters, "original_max_position_embeddings") * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain


_SCALINGS: dict[str, Callable[[Tensor, Mapping[str, object]], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
}


def angles(inverse: Tensor, start: int, count: int, dtype: torch.dtype) -> Angles:
    """What `rotate_` needs for positions [start, start + count)."""
    positions = torch.arange(start, start + count, dtype=torch.float32, device=inverse.device)
    turned = torch.outer(positions, inverse).unsqueeze(1)
    cos, sin = turned.cos(), turned.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate_(heads: Tensor, by: Angles) -> None:
    """Rotates the first elements of heads [.., T, H, D], as many as there are angles, in place."""
    cos, sin = by
    turned = heads[..., : cos.shape[-1]]
    swapped = turned.roll(turned.shape[-1] // 2, -1)
    turned.mul_(cos).addcmul_(swapped, sin)
