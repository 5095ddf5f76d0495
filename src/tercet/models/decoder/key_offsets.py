"""Key offsets: what all keys of a head have in common, taken off them before they become 4 bits.

Shares of softmax do not depend on a vector that is taken off all keys that a query meets, and what
is left is smaller, so its codes are nearer: half of the energy of SmolLM2-135M's keys is such a
vector. It is the mean of the keys of drawn tokens with their rotation undone, rotated as positions
are on an average: columns that turn fast have nothing in common there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.models.decoder.rope import angles, rotate_
from tercet.packed_weight.int4_rows import turn

COUNT = 64
"""Tokens that are drawn."""

# positions whose mean rotation counts: of keys in contexts of 512 to 4,096 it takes most off
_POSITIONS = 2048


def draw_tokens(vocabulary: int) -> Tensor:
    """ids [1, COUNT], the same each time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (1, COUNT), generator=generator)


def find_key_offsets(
    keys: Sequence[Tensor], inverse: Sequence[Tensor], kinds: Sequence[int]
) -> list[Tensor]:
    """Of each layer float32 [G, D], turned (`int4_rows.turn`) as the keys that they are taken off.

    Args:
        keys: of each layer [1, G, T, D], rotated, of positions 0 to T - 1. The first, which every
            query looks at, is like no other and counts nothing.
        inverse: of each kind of rotation, as the decoder has it [R].
        kinds: of each layer.
    """
    undone, mean = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
    for one in inverse:
        cos, sin = angles(one, 0, keys[0].shape[2], torch.float32)
        undone.append((cos, -sin))
        cos, sin = angles(one, 0, _POSITIONS, torch.float32)
        mean.append((cos.mean(0, keepdim=True), sin.mean(0, keepdim=True)))
    found = list[Tensor]()
    for of_layer, kind in zip(keys, kinds, strict=True):
        # [T, G, D]
        heads = of_layer[0].transpose(0, 1).float().clone()
        rotate_(heads, undone[kind])
        common = heads[1:].mean(0, keepdim=True)
        rotate_(common, mean[kind])
        found.append(turn(common[0].nan_to_num(0.0, 0.0, 0.0)))
    return found
