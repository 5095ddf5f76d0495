"""softmax: values worked out by hand, rows shared by programs, bad input."""

import math

import pytest
import torch
import triton
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.softmax import softmax
from tercet.ops.softmax import triton as kernels
from tercet.ops.softmax.op import OP
from tercet.ops.softmax.reference import magnitude, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INFINITY = math.inf
# numpy, under the interpreter, warns of inf - inf, where a GPU says nothing
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
both = pytest.mark.parametrize("name", ["triton", "torch"])


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, device=DEVICE)


@both
def test_golden_values(name: str) -> None:
    with using(OP, load(OP, name)):
        plain = softmax(tensor(0.0, math.log(2), math.log(5), -INFINITY))
        scaled = softmax(tensor(1000.0, 1000.0 + math.log(3) * 4), scale=0.25)
    torch.testing.assert_close(plain, tensor(0.125, 0.25, 0.625, 0.0), rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled, tensor(0.25, 0.75), rtol=1e-4, atol=0)


@both
def test_golden_gradient(name: str) -> None:
    x = tensor(0.0, math.log(3)).requires_grad_()
    with using(OP, load(OP, name)):
        softmax(x, scale=1.0).backward(tensor(1.0, 0.0))
    torch.testing.assert_close(x.grad, tensor(0.1875, -0.1875), rtol=1e-6, atol=0)


@both
@pytest.mark.parametrize("n", [5, 40_000])
def test_rows_that_have_no_softmax_are_nan(name: str, n: int) -> None:
    x = torch.zeros(5, n, device=DEVICE)
    x[0] = -INFINITY
    x[1, n - 1] = INFINITY
    x[2, 2] = torch.nan
    x[3, 1:] = -INFINITY
    with using(OP, load(OP, name)):
        y = softmax(x)
    assert y[:3].isnan().all()
    assert y[3, 0] == 1
    assert (y[3, 1:] == 0).all()
    torch.testing.assert_close(y[4], torch.full((n,), 1 / n, device=DEVICE))


def test_a_long_row_is_added_up_exactly() -> None:
    """torch.softmax is off by 2.5e-6 of these: it adds 131072 float32 numbers in few lanes."""
    (case,) = [case for case in OP.cases if case.name == "2-131072-float32-scale=0.5"]
    x, scale = case.make(1597234981).values()
    with using(OP, load(OP, "torch")):
        y = softmax(x, scale)
    assert bool(((y.double() - reference(x, scale)).abs() <= 3e-7 * magnitude(x, scale)).all())


@pytest.mark.parametrize("n", [3000, 4096])
def test_walking_over_a_row_gives_what_one_block_gives(n: int) -> None:
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    walk = {"ROWS": 1, "BLOCK": 256, "WAVES": 0, "num_warps": 4}
    with using(OP, load(OP, "triton")):
        expected = softmax(x, 0.5)
        (wanted,) = torch.autograd.grad(expected, x, x.detach())
        with (
            force("softmax", "triton", "forward", walk),
            force("softmax", "triton", "backward", walk),
        ):
            found = softmax(x, 0.5)
            (gradient,) = torch.autograd.grad(found, x, x.detach())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-8)


@pytest.mark.skipif(not interpreting(), reason="on a GPU the next test runs it for real")
def test_slices_of_a_row_add_up_when_all_are_there() -> None:
    """The interpreter runs one program after the other, so nobody may wait.

    With counts that are high already nobody does. A first run leaves every slice's part, of which
    the second one makes the result.
    """
    m, n, block, slices = 7, 900, 128, 8
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(0))
    x[1, 128:256] = -INFINITY
    x[2, 5] = torch.nan
    x[3] = -INFINITY
    x[4, 700] = INFINITY
    grad = torch.randn(m, n, generator=torch.Generator().manual_seed(1))
    part, dots = torch.zeros(m, slices, 2), torch.zeros(m, slices)
    y, grad_x = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    widths = {"SLICES": slices, "PADDED": triton.next_power_of_2(slices), "BLOCK": block}
    for _ in range(2):
        ready = torch.full((m + 1,), slices, dtype=torch.int32)
        ready[m] = 0
        kernels._shared[(3 * slices,)](
            x, y, part, ready, m, n, n, 0.5 * math.log2(math.e), **widths
        )
    expected = OP.reference(x, 0.5)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=0, equal_nan=True)
    for _ in range(2):
        ready = torch.full((m + 1,), slices, dtype=torch.int32)
        ready[m] = 0
        kernels._shared_gradient[(3 * slices,)](
            grad, y, grad_x, dots, ready, m, n, n, n, 0.5, **widths
        )
    wanted = load(OP, "torch").gradient
    assert wanted is not None
    torch.testing.assert_close(grad_x, wanted(grad, y, 0.5), rtol=1e-4, atol=1e-7, equal_nan=True)


@pytest.mark.skipif(interpreting(), reason="programs that wait for each other have to run at once")
@pytest.mark.parametrize("waves", [1, 3, 50])
@pytest.mark.parametrize(("m", "n"), [(1, 40_000), (700, 33_000), (64, 131_072), (3, 500_001)])
def test_programs_share_a_row(m: int, n: int, waves: int) -> None:
    """50 programs a multiprocessor are more than fit: those that wait must not keep others out."""
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    share = {"ROWS": 1, "BLOCK": 8192, "WAVES": waves, "num_warps": 8}
    with (
        using(OP, load(OP, "triton")),
        force("softmax", "triton", "forward", share),
        force("softmax", "triton", "backward", share),
    ):
        for _ in range(3):
            y = softmax(x, 0.5)
            (gradient,) = torch.autograd.grad(y, x, x.detach())
            exact = x.detach().double().requires_grad_()
            expected = OP.reference(exact, 0.5)
            (wanted,) = torch.autograd.grad(expected, exact, exact.detach())
            torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-30)
            torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize(
    ("x", "scale", "message"),
    [
        (torch.ones(3, dtype=torch.float64), 1.0, "x is torch.float64"),
        (torch.tensor(1.0), 1.0, "x is a scalar"),
        (torch.ones(3), 0.0, "scale is 0.0: it must be positive and finite"),
        (torch.ones(3), -1.0, "scale is -1.0"),
        (torch.ones(3), math.nan, "scale is nan"),
        (torch.ones(3), INFINITY, "scale is inf"),
    ],
)
def test_bad_input_is_named(x: Tensor, scale: float, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        softmax(x, scale)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="clusters of blocks need compute capability 9.0",
)
@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("m", "n"), [(1, 40_000), (300, 33_000), (150, 131_072), (70, 128_256)])
def test_streamed_rows(m: int, n: int, dtype: torch.dtype, cluster: int) -> None:
    """A cluster walks over rows, some without a softmax; parts of a row may be empty."""
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype) * 4
    if m > 4:
        x[0], x[1, 5], x[2, n - 1], x[3, 1:] = -INFINITY, INFINITY, torch.nan, -INFINITY
    with using(OP, load(OP, "cuda")), force("softmax", "cuda", "forward", {"STREAM": cluster}):
        y = softmax(x, 0.5)
    expected = OP.reference(x.double(), 0.5)
    relative = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    least = 1e-7 if dtype == torch.float16 else 1e-30
    torch.testing.assert_close(y.double(), expected, rtol=relative, atol=least, equal_nan=True)
