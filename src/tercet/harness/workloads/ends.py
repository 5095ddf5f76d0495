"""Ends: drawn cases in which one scalar option, or one input's numbers, is at an end of its range.

What else they have is drawn from the seed, as in `draw`.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

import torch

from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.draw import POWERS, gradient_powers
from tercet.harness.workloads.drawn import Drawn, Incoming
from tercet.harness.workloads.limits import float_of, kinds_of, takes_kinds, values_of_options
from tercet.harness.workloads.systematic import End, draw_each
from tercet.kernel.contract import Op

# of scalar options: next to an end of [0, 1] that a formula may have of its own, and exactly there;
# each is a float32 and so is its distance from 1
_NEAR = {"tiny": 2.0**-23, "below one": 1 - 2.0**-23, "one": 1.0}
# powers of two, of inputs whose product is in range where neither is; and how much smaller than
# otherwise gradients are
_OPPOSED, _FAINT = (45, -90), 6
_SHORT = 0.5  # of the axes, where a whole-number option is beside a size


def draw_ends(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases with one scalar option, or one input's numbers, at an end of its range.

    Options are 0, near it, below it and large, 1 and beside it, whole numbers beside the sizes of
    axes; inputs all 0, small and large, one by one and together, in float16, whose range ends
    soonest, and in another dtype; one large and another one so small that their product is in
    range; so are incoming gradients.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    return draw_each(op, random.Random(f"ends of {seed}"), count, elements, rows, _ends)


def _ends(op: Op, plain: Drawn, generator: random.Random) -> Iterator[tuple[End, Drawn]]:
    arguments = plain.arguments(op, 0)
    first, dtype = op.of_role("input")[0].name, plain.workload.dtype
    positive = dtype in POWERS and takes_kinds(op) and "positive" in kinds_of(op, dtype)
    for name, value in arguments.items():
        if type(value) is float:
            for which, number in _NEAR.items():
                yield (name, which), replace(plain, numbers={name: number})
        if type(value) is float and value:
            factors = {
                "zero": 0.0,
                "near zero": 1e-4,
                "below zero": -30.0,
                "large": max(30.0, 3 / abs(value)),
            }
            for which, factor in factors.items():
                yield (name, which), replace(plain, factors={name: factor})
            if positive:
                # all that is multiplied by it lies far below 0, what is added in its place may not
                raised = {first: POWERS[dtype][1]}
                opposed = replace(plain, kind="positive", factors={name: -30.0}, powers=raised)
                yield (name, "opposed"), opposed
    yield from _beside_sizes(op, plain, generator)
    tied = tied_arguments(op, arguments)
    floats = {
        name: POWERS[own]
        for name, value in arguments.items()
        if name not in tied and (own := float_of(value)) is not None
    }
    half = str(dtype == torch.float16)
    if op.differentiable:
        least, most = gradient_powers(op, dtype)
        for which, power in (("small", least), ("large", most)):
            yield ("gradients", which, half), replace(plain, incoming=Incoming(power=power))
        # products of the two are within range, the larger one by itself may not be
        small = {name: low for name, (low, _) in floats.items()}
        scaled = replace(plain, incoming=Incoming(power=most), powers=small)
        yield ("gradients", "large", "inputs small", half), scaled
        # and so is the result of a gradient that has few digits left in float16
        high = {name: high for name, (_, high) in list(floats.items())[1:]}
        faint = replace(plain, incoming=Incoming(power=least - _FAINT), powers=high)
        yield ("gradients", "small", "inputs large", half), faint
    for name, (low, high) in floats.items():
        for which, power in {"zero": -inf, "small": low, "large": high}.items():
            yield (name, which, half), replace(plain, powers={name: power})
    if len(floats) > 1:
        large = {name: high for name, (_, high) in floats.items()}
        yield ("all", "large", half), replace(plain, powers=large)
        apart = {name: generator.randint(*ends) for name, ends in floats.items()}
        yield ("all", "apart", half), replace(plain, powers=apart)
    for name in list(floats)[1:] if dtype != torch.float16 else ():
        # a product of the second and of what the first is divided by has no room
        yield (name, "opposed"), replace(plain, powers={first: _OPPOSED[0], name: _OPPOSED[1]})


def _beside_sizes(op: Op, plain: Drawn, generator: random.Random) -> Iterator[tuple[End, Drawn]]:
    """Each whole-number option that the cases have, beside the sizes of axes, as of a window.

    Some of the first input's axes but the last are 1 long, as in a step of decoding.
    """
    axes, known = op.of_role("input")[0].axes[:-1], values_of_options(op)
    sizes = {
        name: 1 if name in axes and generator.random() < _SHORT else size
        for name, size in plain.workload.sizes.items()
    }
    counted = [name for name, values in known.items() if all(type(each) is int for each in values)]
    for name, (axis, size) in product(counted, sizes.items()):
        for which, value in (("below", size - 1), ("at", size), ("above", size + size // 3 + 1)):
            if value <= 0:
                continue
            options = {**plain.workload.options, name: value}
            workload = replace(plain.workload, sizes=sizes, options=options)
            yield (name, which, axis), replace(plain, workload=workload)
