"""decode: how products are cut up on any shape, and which calls it takes."""

import itertools

import pytest
import torch

from tercet.kernel.select import explain
from tercet.ops.linear_packed.hopper_decode.plan import (
    DIGIT_TOKENS,
    MOST_COLUMNS,
    PIECE_UNITS,
    Needs,
    Plan,
    in_digits,
    needs_of,
    plan_for,
    shared_bytes,
)
from tercet.ops.linear_packed.op import OP

PROCESSORS, SHARED = 132, 227 * 1024


@pytest.mark.parametrize(
    ("m", "x_bytes", "zeros", "digits"),
    [
        *itertools.product((1, 3, 8, 9, 16), (1, 2), (False, True), (False,)),
        *((m, 1, False, True) for m in range(1, DIGIT_TOKENS + 1)),
    ],
)
def test_a_plan_covers_k_and_fits(m: int, x_bytes: int, zeros: bool, digits: bool) -> None:
    for bits, row_blocks, columns in itertools.product(
        (2, 4, 8), (1, 5, 132, 256, 1792, 9496), (16, 384, 4096, 14336, 28672, MOST_COLUMNS)
    ):
        units = -(-columns // (256 // bits))
        needs = needs_of(m, bits, x_bytes, 64, 1, zeros, digits)
        sent = x_bytes == 1 and bits == 2 and not digits
        plan = plan_for(m, row_blocks, units, needs, PROCESSORS, sent=sent)
        assert 1 <= plan.clusters <= row_blocks
        assert bool(plan.multicast) == sent
        assert plan.clusters % max(1, plan.multicast) == 0
        assert plan.cluster_size in (1, 2, 4, 8)
        assert 1 <= plan.warps_k * plan.warps_n <= 16
        share = plan.warp_units(units)
        assert share % PIECE_UNITS == 0
        assert share * plan.warps_k * plan.cluster_size >= units
        assert shared_bytes(m, row_blocks, units, plan, needs) <= SHARED


def test_every_multiprocessor_has_work() -> None:
    for row_blocks in (132, 256, 896, 1792):
        plan = plan_for(1, row_blocks, 32, needs_of(1, 2, 1), PROCESSORS)
        assert plan.clusters * plan.cluster_size >= PROCESSORS


def test_two_blocks_are_sent_x_together_where_it_is_long_beside_their_weights() -> None:
    needs = needs_of(8, 2, 1)
    assert plan_for(8, 256, 32, needs, PROCESSORS, sent=True).multicast == 2
    assert plan_for(4, 256, 32, needs, PROCESSORS, sent=True).multicast == 2
    assert plan_for(4, 1792, 64, needs, PROCESSORS, sent=True).multicast == 1
    # no two blocks where each takes another part of x, or where one would be left over
    assert plan_for(16, 256, 112, needs, PROCESSORS, sent=True).multicast == 1
    assert plan_for(8, 131, 32, needs, 131, sent=True).multicast == 1
    assert plan_for(8, 256, 32, needs, PROCESSORS).multicast == 0


def test_digits_need_few_tokens_and_more_than_a_row_block_a_multiprocessor() -> None:
    assert in_digits(1, PROCESSORS + 1, PROCESSORS)
    assert in_digits(2, 1792, PROCESSORS)
    assert not in_digits(3, 1792, PROCESSORS)
    assert not in_digits(1, PROCESSORS, PROCESSORS)


def test_two_small_blocks_a_multiprocessor_have_little_x() -> None:
    needs = needs_of(1, 2, 1, digits=True)
    assert plan_for(1, 896, 32, needs, PROCESSORS).clusters == 2 * PROCESSORS
    assert plan_for(1, 256, 112, needs, PROCESSORS).clusters == PROCESSORS
    assert plan_for(1, 256, 112, needs_of(1, 2, 1), PROCESSORS).clusters == 256


def test_needs_by_hand() -> None:
    assert needs_of(1, 2, 1) == Needs(x=128)
    assert needs_of(16, 4, 2) == Needs(x=64 * 2)
    # scales of four units of 16 rows in float32; twice as many where a group is half a unit
    assert needs_of(1, 4, 1, 128, 2).scales == 4 * 16 * 4
    assert needs_of(1, 4, 1, 128, 1).scales == 2 * 4 * 16 * 4
    assert needs_of(9, 4, 1, 128, 1, zeros=True) == Needs(x=64, sums=128, scales=1024)
    # four digits a number, and a float for each of two tokens and four units
    assert needs_of(2, 4, 1, digits=True) == Needs(x=64, rows=4, sums=2)


def test_shared_memory_by_hand() -> None:
    plan = Plan(clusters=2, cluster_size=2, warps_k=3, warps_n=2)
    # 50 units of 32 columns over 6 warps of whole pieces: 12 each, 36 a block
    assert plan.warp_units(50) == 12
    x, scales, slots = 2 * (36 * 32 + 16), 256, 3 * 3 * 2 * 80
    assert shared_bytes(2, 5, 50, plan, needs_of(2, 8, 1)) == 128 + scales + x + slots
    x = 2 * (36 * 64 + 16)
    assert shared_bytes(2, 5, 50, plan, needs_of(2, 8, 2)) == 128 + scales + x + slots
    x = 2 * 4 * (36 * 32 + 16) + 2 * 9 * 4
    needs = needs_of(2, 8, 1, digits=True)
    assert shared_bytes(2, 5, 50, plan, needs) == 128 + scales + x + slots


TAKEN = {"scheme": "ternary-g128", "activation": "int8", "layout": "fragments", "out": "bfloat16"}


@pytest.mark.parametrize(
    ("change", "sizes", "dtype", "reason"),
    [
        ({"scheme": "int2-g64-hqq"}, {}, torch.bfloat16, "takes element"),
        ({"scheme": "mxfp4"}, {}, torch.bfloat16, "takes element"),
        ({"scheme": "int4-g20-float32"}, {}, torch.bfloat16, "takes group"),
        ({"layout": "rows16"}, {}, torch.bfloat16, "takes layout"),
        ({}, {"M": 17}, torch.bfloat16, "takes M from 0 to 16"),
        ({}, {"K": 60000}, torch.bfloat16, "takes K from 0 to 53248"),
        ({}, {}, torch.float32, "the input is torch.float32"),
        ({}, {}, torch.float8_e5m2, "the input is torch.float8_e5m2"),
    ],
)
def test_refuses_what_it_cannot_do(
    change: dict[str, str], sizes: dict[str, int], dtype: torch.dtype, reason: str
) -> None:
    requirement = OP.implementation("hopper_decode").requirement
    taken = {"M": 16, "N": 4096, "K": 4096}
    assert requirement.unfit(taken, OP.traits(TAKEN)) is None
    verdicts = explain(OP, "cuda", dtype, taken | sizes, TAKEN | change)
    found = next(one for one in verdicts if one.implementation == "hopper_decode")
    assert not found.allowed
    assert reason in found.reason


def test_zero_points_all_integers_and_8_bit_floats_are_taken_with_any_codes_of_x() -> None:
    requirement = OP.implementation("hopper_decode").requirement
    integers = ("ternary", "nonary", "int3", "int4-asym", "int4-hqq", "int8-g32-asym")
    for scheme in (*integers, "fp8_e4m3", "fp8_e5m2", "fp8_e4m3-b128x128"):
        for activation in ("none", "int8", "fp8_e4m3"):
            call = TAKEN | {"scheme": scheme, "activation": activation}
            assert requirement.unfit({"M": 1}, OP.traits(call)) is None
