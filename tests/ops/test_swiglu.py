"""swiglu: golden values, the fused tensor, views, bad input, addresses of distant rows."""

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.kernel.launch import as_rows
from tercet.kernel.select import load, using
from tercet.ops.swiglu import swiglu
from tercet.ops.swiglu.op import OP

every_implementation = pytest.mark.parametrize("name", ["triton", "torch"])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(DEVICE)


@every_implementation
def test_golden_values(name: str) -> None:
    gate = torch.tensor([[0.0, 1.0, -1.0, 20.0, -20.0]], device=DEVICE, requires_grad=True)
    up = torch.tensor([[3.0, 2.0, 2.0, 0.5, 1.0]], device=DEVICE, requires_grad=True)
    with using(OP, load(OP, name)):
        y = swiglu(gate, up)
        y.sum().backward()
    silu = torch.tensor([[0.0, 0.731058579, -0.268941421, 19.99999996, -4.12230724e-8]])
    slope = torch.tensor([[0.5, 0.927670512, 0.072329488, 1.00000004, -3.9161919e-8]])
    torch.testing.assert_close(y.cpu(), silu * up.cpu(), rtol=3e-6, atol=0)
    assert up.grad is not None
    assert gate.grad is not None
    torch.testing.assert_close(up.grad.cpu(), silu, rtol=3e-6, atol=0)
    torch.testing.assert_close(gate.grad.cpu(), slope * up.cpu(), rtol=1e-5, atol=2e-7)


@every_implementation
def test_one_tensor_gives_the_numbers_of_two(name: str) -> None:
    both = normal(2, 5, 2 * 37)
    gate, up = (half.contiguous().requires_grad_() for half in both.tensor_split(2, -1))
    both.requires_grad_()
    way = normal(2, 5, 37, seed=1)
    with using(OP, load(OP, name)):
        apart, fused = swiglu(gate, up), swiglu(both)
        views = swiglu(*both.tensor_split(2, -1))
        apart.backward(way)
        (grad_fused,) = torch.autograd.grad(fused, both, way)
        (grad_views,) = torch.autograd.grad(views, both, way)
    # torch's own sigmoid rounds differently where a row ends within a vector
    torch.testing.assert_close(apart, fused, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(apart, views, rtol=1e-6, atol=1e-6)
    assert grad_fused.is_contiguous()
    assert gate.grad is not None
    assert up.grad is not None
    torch.testing.assert_close(
        grad_fused, torch.cat((gate.grad, up.grad), -1), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(grad_fused, grad_views, rtol=1e-6, atol=1e-6)


def test_halves_are_read_where_they_lie() -> None:
    both = normal(4, 2 * 64)
    for half in both.tensor_split(2, -1):
        assert as_rows(half).data_ptr() == half.data_ptr()


@every_implementation
def test_an_expanded_gradient(name: str) -> None:
    gate, up = normal(3, 8).requires_grad_(), normal(3, 8, seed=1)
    with using(OP, load(OP, name)):
        (found,) = torch.autograd.grad(swiglu(gate, up).sum(), gate)
        (wanted,) = torch.autograd.grad(swiglu(gate, up), gate, torch.ones_like(gate))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@every_implementation
def test_only_the_wanted_gradient(name: str) -> None:
    gate, up = normal(3, 8), normal(3, 8, seed=1).requires_grad_()
    with using(OP, load(OP, name)):
        swiglu(gate, up).sum().backward()
    assert gate.grad is None
    assert up.grad is not None
    torch.testing.assert_close(up.grad, torch.nn.functional.silu(gate))


@pytest.mark.parametrize(
    ("gate", "up", "message"),
    [
        (torch.ones(2, 3), None, r"gate is \[2, 3\] without up.*must be even"),
        (
            torch.ones(2, 3),
            torch.ones(2, 4),
            r"gate is torch.float32 \[2, 3\], up .*\[2, 4\].*alike",
        ),
        (torch.ones(2, 3), torch.ones(2, 3).half(), "up torch.float16"),
        (torch.ones(2, 4, dtype=torch.int8), None, r"gate is torch.int8 \[2, 4\]"),
        (torch.ones(()), None, r"of \[..., N\]"),
        (torch.ones(2, 3), torch.ones(2, 3, device="meta"), "up on meta"),
    ],
)
def test_bad_input(gate: torch.Tensor, up: torch.Tensor | None, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        swiglu(gate, up)
