"""rms_norm_quantized and swiglu_quantized: golden values, sums of their own codes, sharp limits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import Op
from tercet.kernel.select import load, using
from tercet.ops.rms_norm_quantized import rms_norm_quantized
from tercet.ops.rms_norm_quantized.op import OP as NORM
from tercet.ops.swiglu_quantized import swiglu_quantized
from tercet.ops.swiglu_quantized.op import OP as ACTIVATION
from tercet.packed_weight.row_codes import quantize

every_implementation = pytest.mark.parametrize("name", ["triton", "torch"])
every_element = pytest.mark.parametrize("element", ["int8", "fp8_e4m3"])
every_op = pytest.mark.parametrize("op", [NORM, ACTIVATION], ids=lambda op: op.name)
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN and inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FIRST = {NORM.name: "x", ACTIVATION.name: "gate"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def arguments(op: Op, element: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    if op is NORM:
        shared = {"weight": normal(300, seed=2).to(dtype), "residual": None, "eps": 1e-6}
        return {"x": normal(64, 300).to(dtype), **shared, "element": element}
    halves = {"gate": normal(64, 300).to(dtype), "up": normal(64, 300, seed=1).to(dtype)}
    return {**halves, "element": element}


def run(op: Op, name: str, given: dict[str, Any]) -> list[Tensor]:
    there = [value.to(DEVICE) if isinstance(value, Tensor) else value for value in given.values()]
    return [output.cpu() for output in load(op, name).forward(*there)]


def exact(op: Op, given: dict[str, Any]) -> Tensor:
    """y in float64."""
    if op is NORM:
        x = given["x"].double()
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * given["weight"].double()
    return torch.nn.functional.silu(given["gate"].double()) * given["up"].double()


@every_implementation
def test_golden_norm(name: str) -> None:
    x, residual = torch.tensor([[1.0, 1.0, 6.0, 1.0]]), torch.tensor([[2.0, 3.0, -6.0, -1.0]])
    weight = torch.tensor([1.0, 1.0, 5.0, 2.0])
    with using(NORM, load(NORM, name)):
        given = (x.to(DEVICE), weight.to(DEVICE), residual.to(DEVICE))
        codes, scale, row_sum, total = rms_norm_quantized(*given, eps=0.0)
        alone = rms_norm_quantized(total, weight.to(DEVICE), eps=0.0)
    assert total.tolist() == [[3.0, 4.0, 0.0, 0.0]]
    # y is 1.2 and 1.6: the mean square is 6.25; three quarters of 127 are 95.25
    assert codes.tolist() == [[95, 127, 0, 0]]
    assert row_sum.tolist() == [222]
    torch.testing.assert_close(scale.cpu(), torch.tensor([1.6 / 127]), rtol=1e-6, atol=0)
    assert torch.equal(alone[0], codes)


@every_implementation
def test_golden_activation(name: str) -> None:
    gate, up = torch.tensor([[1.0, -1.0, 0.0, 30.0]]), torch.tensor([[2.0, 4.0, 9.0, 0.1]])
    with using(ACTIVATION, load(ACTIVATION, name)):
        codes, scale, row_sum = swiglu_quantized(gate.to(DEVICE), up.to(DEVICE))
    # y is 1.462117, -1.075766, 0 and 3
    assert codes.tolist() == [[62, -46, 0, 127]]
    assert row_sum.tolist() == [143]
    torch.testing.assert_close(scale.cpu(), torch.tensor([3 / 127]), rtol=1e-6, atol=0)


@every_op
@every_implementation
@every_element
def test_row_sum_is_of_these_codes(op: Op, name: str, element: str) -> None:
    codes, _, row_sum, *_ = run(op, name, arguments(op, element, torch.bfloat16))
    assert torch.equal(row_sum, codes.float().double().sum(-1).to(row_sum.dtype))


@every_op
@every_implementation
def test_codes_are_nearest(op: Op, name: str) -> None:
    given = arguments(op, "int8")
    codes, scale, *_ = run(op, name, given)
    error = (codes.double() * scale.double()[:, None] - exact(op, given)).abs()
    assert (error <= scale[:, None] * (0.5 + 1e-4)).all()
    assert (codes.int().abs().amax(-1) == 127).all()


@every_op
@every_element
def test_the_limit_is_sharp(op: Op, element: str) -> None:
    """Room for another code is left at very few elements, and wrong roundings do not fit in it."""
    given = arguments(op, element)
    expected, room = op.reference(**given)[0], op.magnitude(**given)[0]
    assert (room > 0).double().mean() < 0.005

    def wrong(y: Tensor) -> int:
        codes, *_ = quantize(y, element)
        return int(((codes.float().double() - expected).abs() > room).sum())

    y = exact(op, given)
    assert wrong(y.float()) == 0
    assert wrong(y.bfloat16()) > 200, "rounded to bfloat16 on the way"
    assert wrong(y.float() * (1 + 0.1 * torch.arange(300).eq(7))) > 5, "one column off"
    assert wrong(y.float() + 1e-3 * y.float().abs().amax(-1, keepdim=True)) > 200, "an offset"


@every_op
@every_implementation
@every_element
@interpreted
def test_rows_that_are_not_finite(op: Op, name: str, element: str) -> None:
    given = arguments(op, element)
    whole = run(op, name, given)
    given[FIRST[op.name]][3, 5], given[FIRST[op.name]][9, 0] = torch.nan, -torch.inf
    codes, scale, row_sum, *_ = run(op, name, given)
    broken = torch.zeros(64, dtype=torch.bool)
    broken[[3, 9]] = True
    assert not scale[broken].isfinite().any()
    assert codes.view(torch.uint8)[broken].count_nonzero() == 0
    assert row_sum[broken].tolist() == [0, 0]
    for output, before in zip((codes, scale, row_sum), whole, strict=False):
        kept, was = output[~broken], before[~broken]
        assert torch.equal(kept.view(torch.uint8), was.view(torch.uint8)), "rows are independent"


@every_implementation
@pytest.mark.parametrize("n", [37, 17000])
def test_one_tensor_gives_the_codes_of_two(name: str, n: int) -> None:
    both = normal(3, 2 * n)
    fused = run(ACTIVATION, name, {"gate": both, "up": None, "element": "int8"})
    gate, up = (half.contiguous() for half in both.tensor_split(2, -1))
    apart = run(ACTIVATION, name, {"gate": gate, "up": up, "element": "int8"})
    # torch's own sigmoid may round an element of one of them to another code
    assert (fused[0].int() - apart[0].int()).abs().sum() <= 2
    torch.testing.assert_close(fused[1], apart[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: swiglu_quantized(torch.ones(2, 3)), r"gate is \[2, 3\] without up.*even"),
        (lambda: swiglu_quantized(torch.ones(2, 3), torch.ones(2, 4)), "must be alike"),
        (lambda: swiglu_quantized(torch.ones(2, 4).int()), "gate is torch.int32"),
        (lambda: swiglu_quantized(torch.ones(2, 4), element="fp8"), "did you mean 'fp8_e4m3'"),
        (
            lambda: swiglu_quantized(torch.ones(2, 3), torch.ones(2, 3, device="meta")),
            "gate is on cpu, up on meta",
        ),
        (lambda: rms_norm_quantized(torch.ones(2, 3), torch.ones(4)), r"weight \[4\].*\[N\]"),
        (lambda: rms_norm_quantized(torch.ones(2, 3).int(), torch.ones(3)), "x is torch.int32"),
        (
            lambda: rms_norm_quantized(torch.ones(2, 3), torch.ones(3), torch.ones(3)),
            r"residual torch.float32 \[3\]: they must be alike",
        ),
        (
            lambda: rms_norm_quantized(torch.ones(2, 3), torch.ones(3), element="int7"),
            "did you mean 'int8'",
        ),
        (
            lambda: rms_norm_quantized(torch.ones(2, 3), torch.ones(3, device="meta")),
            "x is on cpu, weight on meta",
        ),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        call()
