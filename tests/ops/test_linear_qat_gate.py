"""gate_gradient: gradients against float64's, codes against those of the gradients themselves."""

import pytest
import torch
from torch import Tensor

from tercet.kernel.device.row_codes import quantize
from tercet.kernel.select import load, using
from tercet.ops.fake_quantize import fake_quantize
from tercet.ops.linear_qat import gate, gate_cuda, transposed
from tercet.ops.linear_qat.gate import Made, gate_gradient
from tercet.ops.linear_qat.op import GRADIENT, GRADIENT_CODED, OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# one rounding; a float32 result of some operations is rounded for the first time
_RELATIVE = {torch.float32: 2.0**-20, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
every_dtype = pytest.mark.parametrize("dtype", _RELATIVE)
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
every_path = pytest.mark.parametrize(
    "path",
    ["torch", pytest.param("cuda", marks=pytest.mark.skipif(not HOPPER, reason="Hopper's"))],
)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype)


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Plain torch on any device, or the kernel, which has to be the one that is called."""
    if path == "torch":
        monkeypatch.setattr(gate, "_path", lambda _: gate.plain)
    else:
        monkeypatch.setattr(gate, "plain", None)


def made(
    m: int, n: int, dtype: torch.dtype, one: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """grad, gate, up; the scales of both weights, and of x."""
    shape = (1, 1) if one else (n, 1)
    return (
        normal(m, n, seed=1, dtype=dtype) * 0.01,
        normal(m, n, seed=2, dtype=dtype) * 3,
        normal(m, n, seed=3, dtype=dtype),
        normal(*shape, seed=4).abs() + 0.1,
        normal(*shape, seed=5).abs() + 0.1,
        normal(m, seed=6).abs() + 0.1,
    )


@every_path
@every_dtype
@pytest.mark.usefixtures("by")
@pytest.mark.parametrize(("m", "n"), [(16, 96), (5, 17), (1, 8), (7, 1544), (299, 8192)])
@pytest.mark.parametrize("one", [False, True])
def test_against_float64(path: str, m: int, n: int, dtype: torch.dtype, one: bool) -> None:
    if path == "cuda" and (n % 8 or dtype not in gate_cuda.DTYPES):
        pytest.skip("left to torch")
    grad, gates, ups, *scales, x_scale = made(m, n, dtype, one)
    found = gate_gradient(grad, gates, ups, *scales, x_scale)
    wide = [each.double().requires_grad_() for each in (gates, ups)]
    (torch.nn.functional.silu(wide[0]) * wide[1]).backward(grad.double())
    for each, to, of, scale in zip(wide, found[:2], found[2:], scales, strict=True):
        assert to.dtype == dtype
        assert each.grad is not None
        # of silu's slope, which is nearly 0 at -1.28, one sum is rounded: absolute
        room = each.grad.abs() * _RELATIVE[dtype] + grad.double().abs().max() * 2**-20
        assert ((to.double() - each.grad).abs() <= room).all()
        codes, size, _ = quantize(to.float() * scale.reshape(-1), "int8")
        assert torch.equal(of.codes, codes)
        assert torch.equal(of.size, size)
        by_column = quantize((to.float() * x_scale[:, None]).T.contiguous(), "int8")[1]
        assert of.columns is not None
        assert torch.equal(of.columns, by_column)


@every_path
@pytest.mark.usefixtures("by")
def test_rows_far_apart_and_of_more_axes() -> None:
    grad, gates, ups, *scales, _ = made(12, 40, torch.bfloat16)
    wanted = gate_gradient(grad, gates, ups, *scales)
    far = [torch.cat((each, each), 1)[:, :40].reshape(3, 4, 40) for each in (grad, gates, ups)]
    found = gate_gradient(*far, *scales)
    assert torch.equal(found.to_gate, wanted.to_gate)
    assert torch.equal(found.of_up.codes, wanted.of_up.codes)
    assert found.of_gate.columns is None


@every_path
@pytest.mark.usefixtures("by")
def test_a_row_that_is_not_finite_has_codes_0() -> None:
    grad, gates, ups, *scales, x_scale = made(4, 24, torch.bfloat16)
    grad[1, 3], grad[2, 5] = float("inf"), float("nan")
    grad[3] = 0
    for of in gate_gradient(grad, gates, ups, *scales, x_scale)[2:]:
        assert (of.codes != 0).any(1).tolist() == [True, False, False, False]
        assert of.size.isfinite().tolist() == [True, False, False, True]
        assert of.columns.isfinite().logical_not().nonzero().flatten().tolist() == [3, 5]


@pytest.mark.parametrize("name", ["cuda", "triton", "torch"])
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_a_gradient_of_given_codes_is_that_of_its_own(name: str, kind: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("Hopper's")
    m, n, k = 32, 48, 64
    grad = normal(m, n, seed=1, dtype=torch.bfloat16)
    weight = fake_quantize(normal(n, k, seed=2) * 0.02, scheme="ternary-channel-float32")
    x_codes, x_scale, _ = quantize(normal(m, k, seed=3), "int8")
    seen = transposed(x_codes)
    if kind == "float":
        seen = (x_codes * x_scale[:, None]).to(torch.bfloat16)
    seed = torch.tensor(7, device=DEVICE)
    given = (grad, weight.codes, weight.scale, None, x_codes, x_scale, seen, seed, kind)
    given += (torch.bfloat16, torch.bfloat16)
    codes, size, _ = quantize(grad.float() * weight.scale.reshape(-1), "int8")
    columns = quantize((grad.float() * x_scale[:, None]).T.contiguous(), "int8")[1]
    made = Made(codes, size, columns if kind == "int8" else None)
    with using(OP, load(OP, name)):
        for one, other in zip(GRADIENT(*given), GRADIENT_CODED(*given, *made), strict=True):
            assert torch.equal(one, other)
            assert one.abs().sum() > 0
