"""append_kv in Triton where a program takes several new positions: the same as one each."""

import pytest
import torch

from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.append_kv import append_kv
from tercet.ops.append_kv.op import OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("codes", [None, torch.int8])
@pytest.mark.parametrize("norms", [False, True])
def test_what_is_left_over_is_done_once(norms: bool, codes: torch.dtype | None) -> None:
    """Two sequences of seven new positions, four a program: the last takes two positions twice."""
    draw = torch.Generator().manual_seed(0)
    heads, groups, width, block = 3, 1, 16, 8
    qkv = torch.randn(2, 7, (heads + 2 * groups) * width, generator=draw).to(DEVICE)
    turns = torch.outer(torch.arange(20.0), torch.rand(8, generator=draw)).to(DEVICE)
    keys = torch.zeros(5, groups, block, width, device=DEVICE, dtype=codes or torch.float32)
    scales = torch.zeros(5, groups, block, device=DEVICE) if codes else None
    blocks = torch.tensor([[4, 0], [2, 3]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([9, 14], dtype=torch.int32, device=DEVICE)
    weights = [torch.rand(width, generator=draw).to(DEVICE) if norms else None for _ in range(2)]

    def run() -> list[torch.Tensor]:
        found = append_kv(
            qkv, turns.cos(), turns.sin(), keys, keys.clone(), blocks, lengths,
            key_scales=scales, value_scales=None if scales is None else scales.clone(),
            query_norm=weights[0], key_norm=weights[1],
        )  # fmt: skip
        return list(found)

    with using(OP, load(OP, "triton")):
        with force("append_kv", "triton", "forward", {"TOKENS": 1, "num_warps": 1}):
            expected = run()
        with force("append_kv", "triton", "forward", {"TOKENS": 4, "num_warps": 1}):
            found = run()
    assert bool(expected[1].any())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
