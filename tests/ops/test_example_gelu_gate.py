"""The guide's example, as numbers."""

from pathlib import Path

import torch
from torch.nn import functional

from tercet.kernel.model_shape import ModelShape
from tercet.ops.discover import find

OP = find(str(Path(__file__).parents[2] / "docs" / "guides" / "examples" / "gelu_gate"))


def test_reference_is_the_published_formula() -> None:
    gate = torch.linspace(-6, 6, 97, dtype=torch.float64)
    up = torch.linspace(-2, 3, 97, dtype=torch.float64)
    expected = functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(OP.reference(gate, up), expected, rtol=1e-13, atol=1e-15)


def test_reference_values() -> None:
    """Computed by mpmath with 80 digits: g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3)))."""
    gate = torch.tensor([-8.0, -4.0, -0.5, 0.0, 1.0, 3.0], dtype=torch.float64)
    expected = torch.tensor(
        [
            -3.1077829375011112e-21,
            -7.024594819237269e-5,
            -0.15428599017485608,
            0.0,
            0.8411919906082767,
            2.996362607918227,
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(OP.reference(gate, torch.ones(6)), expected, rtol=1e-13, atol=0.0)


def test_magnitude_covers_what_float32_exponents_lose() -> None:
    gate = torch.linspace(-100, 100, 20001)
    up = torch.ones_like(gate)
    found = gate * torch.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate**3))
    error = (found.double() - OP.reference(gate, up)).abs()
    assert (error <= 1e-6 * OP.magnitude(gate, up) + torch.finfo(torch.float32).tiny).all()
    # where the exponent is small it is hardly more than the result's own size
    near = gate.abs() < 0.5
    assert (OP.magnitude(gate, up)[near] < 1.6 * OP.reference(gate, up)[near].abs() + 1e-12).all()


def test_bytes_are_those_of_the_tensors() -> None:
    gate = torch.empty(5, 7, dtype=torch.bfloat16)
    arguments = {"gate": gate, "up": gate}
    assert OP.cost(arguments).bytes == 3 * 5 * 7 * 2
    assert OP.gradient_cost(arguments).bytes == 5 * 5 * 7 * 2


def test_shapes_of_dense_and_expert_layers() -> None:
    model = ModelShape(
        name="m", hidden=8, intermediate=30, layers=1, heads=1, kv_heads=1, head_dim=8,
        vocabulary=9, experts=4, experts_per_token=2, expert_intermediate=12, tokens=100,
        tensor_parallel=4,
    )  # fmt: skip
    assert [dict(found.sizes) for found in OP.shapes(model)] == [
        {"M": 100, "N": 8},
        {"M": 200, "N": 3},
    ]
