"""Axes longer than other cases have room for, zeros with each option, what is not read."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tercet.harness.check.run import cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.workloads.layouts import LAYOUTS, lay_out
from tercet.harness.workloads.long import draw_long
from tercet.harness.workloads.systematic import draw_single
from tercet.ops.discover import find

ELEMENTS = 1 << 18


def test_experts_are_more_than_a_byte_counts_and_have_rows() -> None:
    drawn = list(draw_long(find("grouped_linear_packed"), 3, ELEMENTS))
    many = [each for each in drawn if each.workload.sizes["E"] > 256]
    assert many
    offsets = many[0].arguments(find("grouped_linear_packed"), 0)["offsets"]
    assert int(offsets[-1]) > int(offsets[256])


def test_positions_are_beyond_int16() -> None:
    sizes = {each.workload.sizes["S"] for each in draw_long(find("rope"), 3, ELEMENTS)}
    assert max(sizes) > 1 << 15


def test_each_option_comes_with_an_input_that_is_0() -> None:
    drawn = list(draw_single(find("embedding_packed"), 3, 40, ELEMENTS))
    zero = [each for each in drawn if each.powers]
    assert len(zero) > len(drawn) // 4
    tensor = [each for each in zero if "tensor" in str(each.workload.options.get("scheme"))]
    assert not tensor[0].arguments(find("embedding_packed"), 0)["weight"].scale.any()


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 2, 2, 4), (9, 3), (1, 7, 4)])
def test_of_blocks_that_lie_far_apart_the_last_one_itself_is_beyond_int32(
    shape: tuple[int, ...],
) -> None:
    laid = lay_out("far apart", torch.ones(shape), 0)
    reach = sum((size - 1) * step for size, step in zip(shape, laid.stride(), strict=True))
    assert reach >= 2**31
    if shape[0] > 2:
        assert (shape[0] - 1) * laid.stride(0) >= 2**31


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [2, 3, 5, 6, 9])
def test_products_take_rows_that_lie_far_apart(rows: int, dtype: torch.dtype) -> None:
    """A library that counts the bytes of a row's step in 32 bits ends the process otherwise."""
    laid = lay_out("far apart", torch.ones((rows, 2), dtype=dtype), 7)
    assert laid.stride(0) * laid.itemsize < 2**31
    assert torch.equal(laid @ laid.T, torch.full((rows, rows), 2, dtype=dtype))


def test_where_there_are_no_addresses_rows_lie_one_behind_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(x: Tensor, index: int) -> Tensor:
        raise MemoryError(x.shape, index)

    monkeypatch.setitem(LAYOUTS, "far apart", refuse)
    op = find("rms_norm")
    drawn = next(each for each in draw_long(op, 3, ELEMENTS) if each.layout == "far apart")
    plain = replace(drawn, layout=None).arguments(op, 1)["x"]
    laid = drawn.arguments(op, 1)["x"]
    assert torch.equal(laid, plain)
    assert laid.stride() == plain.stride()


@pytest.mark.parametrize("reads", [True, False])
def test_numbers_that_only_carry_a_gradient_may_be_anything(tmp_path: Path, *, reads: bool) -> None:
    op, path = find("linear_qat"), tmp_path / "candidate.py"
    path.write_text(
        "from tercet.ops.linear_qat import torch_path\n"
        "from tercet.ops.linear_qat.torch_path import gradient\n"
        "def forward(call):\n"
        "    y, codes, scale = torch_path.forward(call)\n"
        f"    return y + (0 * call.x.sum() if {reads} else 0), codes, scale\n"
    )
    coded = [each for each in op.cases if each.make(0)["x_codes"] is not None and each.gradient]
    plain = [each for each in coded if len(each.make(0)["x"]) > 1][:1]
    report = check(
        op, candidate=candidate_from(path), device="cpu", isolated=False, integration=False,
        cases=cases_of(op, [each.name for each in plain]), drawn=0,
    )  # fmt: skip
    words = [each.message for each in report.faults]
    assert any(each.startswith("x, which is not read, all NaN") for each in words) is reads, words
