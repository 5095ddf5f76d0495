"""layer_norm: values worked out by hand, what the mean's correction is for, bad input."""

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.launch import multiprocessors
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.layer_norm import layer_norm
from tercet.ops.layer_norm.op import OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("name", ["triton", "torch"])


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=DEVICE)


@both
def test_golden_values(name: str) -> None:
    # mean 3, variance 5 (a sum over N, not over N - 1)
    x = tensor(0.0, 2.0, 4.0, 6.0)
    with using(OP, load(OP, name)):
        y = layer_norm(x, tensor(1, 1, 1, 2), tensor(0, 0, 0, 10), eps=0.0)
    expected = tensor(-3.0, -1.0, 1.0, 6.0) / 5**0.5 + tensor(0, 0, 0, 10)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)


@both
def test_golden_gradients(name: str) -> None:
    x = tensor(-1.0, 1.0).requires_grad_()
    weight, bias = tensor(2.0, 3.0).requires_grad_(), tensor(0.0, 0.0).requires_grad_()
    with using(OP, load(OP, name)):
        y = layer_norm(x, weight, bias, eps=0.0)
        y.backward(tensor(1.0, 10.0))
    # of two numbers only the sign of their difference is left: x has no gradient
    assert x.grad is not None
    assert x.grad.abs().max() < 1e-5
    assert weight.grad is not None
    assert bias.grad is not None
    assert weight.grad.tolist() == [-1.0, 10.0]
    assert bias.grad.tolist() == [1.0, 10.0]


@both
def test_a_constant_row_becomes_exactly_the_bias(name: str) -> None:
    x = torch.full((3, 1000), 0.7, device=DEVICE)
    weight = torch.full((1000,), 100.0, device=DEVICE)
    with using(OP, load(OP, name)):
        y, mean, _ = OP.run(x, weight, torch.full_like(weight, 0.25), 1e-5)
    assert (y - 0.25).abs().max() <= 1e-6
    assert (mean == x[0, 0]).all()


@both
def test_a_mean_far_from_zero_leaves_the_variance(name: str) -> None:
    x = torch.randn(4, 777, generator=torch.Generator().manual_seed(3)).to(DEVICE) + 4e4
    with using(OP, load(OP, name)):
        _, _, rstd = OP.run(x, torch.ones(777, device=DEVICE), None, 1e-5)
    expected = OP.reference(x, torch.ones(777, device=DEVICE))[2]
    assert ((rstd.double() - expected).abs() / expected).max() < 1e-5


@pytest.mark.parametrize("waves", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 4])
def test_every_number_of_programs_gives_the_same(waves: int, rows: int) -> None:
    m = 2 * multiprocessors(torch.device(DEVICE)) * 3 + 5
    x = torch.randn(m, 65, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()
    weight = torch.randn(65, generator=torch.Generator().manual_seed(2)).to(DEVICE).requires_grad_()
    bias = torch.zeros(65, device=DEVICE, requires_grad=True)
    direction = torch.linspace(-1, 1, m * 65, device=DEVICE).reshape(m, 65)
    options = {"ROWS": rows, "WAVES": waves, "STAGES": 2, "num_warps": 4}
    backward = {**options, "WAVES": max(waves, 1)}
    with (
        using(OP, load(OP, "triton")),
        force("layer_norm", "triton", "forward", options),
        force("layer_norm", "triton", "backward", backward),
    ):
        y = layer_norm(x, weight, bias)
        found = torch.autograd.grad(y, (x, weight, bias), direction)
    with using(OP, load(OP, "torch")):
        expected = layer_norm(x, weight, bias)
        wanted = torch.autograd.grad(expected, (x, weight, bias), direction)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        (torch.ones(2, 3, dtype=torch.int64), torch.ones(3), None, "x is torch.int64"),
        (torch.ones(2, 3), torch.ones(3).half(), None, "weight of x's dtype or float32"),
        (torch.ones(2, 3), torch.ones(2), None, r"weight must be \[N\]"),
        (torch.tensor(1.0), torch.ones(1), None, r"weight must be \[N\]"),
        (torch.ones(2, 3), torch.ones(3), torch.ones(1), "they must be alike"),
        (torch.ones(2, 3), torch.ones(3), torch.ones(3).half(), "they must be alike"),
        (torch.ones(2, 3), torch.ones(3, device="meta"), None, "weight on meta: move one"),
    ],
)
def test_bad_input_is_named(x: Tensor, weight: Tensor, bias: Tensor | None, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        layer_norm(x, weight, bias)
