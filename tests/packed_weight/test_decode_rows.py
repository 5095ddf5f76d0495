"""decode_rows gives what a packed weight stands for, in every scheme, from any row on."""

import pytest
import torch

from tercet.ops.linear_packed.cases import random_weight
from tercet.packed_weight.triton.decode_rows import decode_rows
from tercet.packed_weight.weight import prepare

SCHEMES = [
    "ternary-channel",
    "ternary-g64-bfloat16",
    "nonary-g32",
    "int2-g16-asym",
    "int3-tensor",
    "int4-g20",
    "int8-channel-float32",
    "fp8_e4m3-channel",
    "mxfp4",
    "nvfp4",
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = {"BT": 8, "BK": 64, "num_warps": 4}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_of_a_range_and_rows_by_id_are_those_of_the_weight(scheme: str) -> None:
    packed = random_weight(scheme, 53, 160, seed=3)
    expected = packed.dequantize()
    weight = prepare(packed, DEVICE).to_layout("fragments")
    for part in (range(53), range(7, 40), range(52, 53)):
        found = decode_rows(weight, part, torch.float32, **OPTIONS).cpu()
        torch.testing.assert_close(found, expected[part.start : part.stop], rtol=3e-7, atol=0)
    ids = torch.tensor([[52, 0, 7], [7, 16, 31]], device=DEVICE)
    by_id = decode_rows(weight, ids, torch.float32, **OPTIONS)
    assert torch.equal(by_id, decode_rows(weight, range(53), torch.float32, **OPTIONS)[ids])
    assert decode_rows(weight, range(4, 4), torch.float32, **OPTIONS).shape == (0, 160)
