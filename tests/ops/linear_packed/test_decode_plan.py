"""decode: how products are cut up on any shape, and which calls it takes."""

import pytest
import torch

from tercet.kernel.select import explain
from tercet.ops.linear_packed.decode_plan import Piece, Plan, piece_of, plan_for, shared_bytes
from tercet.ops.linear_packed.op import OP

PROCESSORS, SHARED = 132, 227 * 1024


@pytest.mark.parametrize("m", [1, 3, 8, 9, 16])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("x_bytes", [1, 2])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("row_blocks", [1, 5, 132, 256, 1792, 9496])
def test_a_plan_covers_every_row_and_fits(
    m: int, bits: int, x_bytes: int, zeros: bool, row_blocks: int
) -> None:
    for units in (1, 3, 32, 112, 897):
        piece = piece_of(m, bits, x_bytes, 64, 1, 4, zeros)
        plan = plan_for(m, row_blocks, units, piece, PROCESSORS)
        assert 1 <= plan.blocks <= row_blocks
        assert 1 <= plan.warps <= 16
        assert (plan.warps - 1) * piece.units < units, "a warp has nothing to do"
        assert plan.stages >= 2
        assert shared_bytes(m, row_blocks, plan, piece) <= SHARED


def test_every_multiprocessor_has_work() -> None:
    for row_blocks in (132, 256, 896, 1792):
        plan = plan_for(1, row_blocks, 32, piece_of(1, 2, 1), PROCESSORS)
        assert plan.blocks >= PROCESSORS


def test_pieces_by_hand() -> None:
    whole_rows = Piece(units=4, stage_bytes=2048, row_bytes=4 * 128 + 16, one_slot=True)
    assert piece_of(1, 2, 1) == whole_rows
    # two tiles of bfloat16 against 2 bits would fill the registers with x: half as many units
    assert piece_of(16, 2, 2) == Piece(units=2, stage_bytes=1024, row_bytes=2 * 128 * 2 + 16)
    # four units of 64 columns touch at most nine groups of 32, of 16 rows, in 16 bits
    assert piece_of(1, 4, 1, 128, 1).stage_bytes == 2048 + 384
    assert piece_of(1, 4, 1, 128, 1, 2, zeros=True).stage_bytes == 2048 + 640


def test_shared_memory_by_hand() -> None:
    plan, piece = Plan(blocks=2, warps=4, stages=3), piece_of(2, 8, 1)
    rings, x, scales, slots = 4 * 3 * 2048, 4 * 2 * (128 + 16), 3 * 64, 3 * 2 * 80
    assert shared_bytes(2, 5, plan, piece) == 2048 + rings + x + scales + slots
    # sums of floats: a slot for each warp
    x = 4 * 2 * (256 + 16)
    assert shared_bytes(2, 5, plan, piece_of(2, 8, 2)) == 2048 + rings + x + scales + 4 * slots


TAKEN = {"scheme": "ternary-g128", "activation": "int8", "layout": "fragments", "out": "bfloat16"}


@pytest.mark.parametrize(
    ("change", "sizes", "dtype", "reason"),
    [
        ({"scheme": "int2-g64-hqq"}, {}, torch.bfloat16, "takes element"),
        ({"scheme": "fp8_e4m3"}, {}, torch.bfloat16, "takes element"),
        ({"scheme": "mxfp4"}, {}, torch.bfloat16, "takes element"),
        ({"scheme": "int4-g20-float32"}, {}, torch.bfloat16, "takes group"),
        ({"activation": "fp8_e4m3"}, {}, torch.bfloat16, "takes activation"),
        ({"layout": "rows16"}, {}, torch.bfloat16, "takes layout"),
        ({}, {"M": 17}, torch.bfloat16, "takes M from 0 to 16"),
        ({}, {}, torch.float32, "the input is torch.float32"),
        ({}, {}, torch.float8_e4m3fn, "the input is torch.float8_e4m3fn"),
    ],
)
def test_refuses_what_it_cannot_do(
    change: dict[str, str], sizes: dict[str, int], dtype: torch.dtype, reason: str
) -> None:
    requirement = OP.implementation("cuda_decode").requirement
    taken = {"M": 16, "N": 4096, "K": 4096}
    assert requirement.unfit(taken, OP.traits(TAKEN)) is None
    verdicts = explain(OP, "cuda", dtype, taken | sizes, TAKEN | change)
    found = next(one for one in verdicts if one.implementation == "cuda_decode")
    assert not found.allowed
    assert reason in found.reason


def test_zero_points_and_all_integer_elements_are_taken() -> None:
    requirement = OP.implementation("cuda_decode").requirement
    for scheme in ("ternary", "nonary", "int3", "int4-asym", "int4-hqq", "int8-g32-asym"):
        assert requirement.unfit({"M": 1}, OP.traits(TAKEN | {"scheme": scheme})) is None
