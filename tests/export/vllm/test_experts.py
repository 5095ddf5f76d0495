"""Packed experts as vLLM's plugin multiplies them, against their dequantized weights in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import UnsupportedError
from tercet.export.vllm.shard_of import shard_of
from tercet.formats import encode, fit, parse_scheme
from tercet.formats.shard import cut
from tercet.models.experts_product import ExpertsProduct, Weight
from tercet.models.input_transform import InputTransform, hadamard_transform

EXPERTS, HIDDEN, INNER, TOKENS = 5, 96, 64, 7
CPU = torch.device("cpu")
Projection = list[tuple[str, Weight]]


def seeded(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def projection(name: str, rows: int, columns: int, seed: int, **steps: object) -> Projection:
    found: Projection = []
    for index in range(EXPERTS):
        values, scheme = seeded(100 * seed + index, rows, columns) * 0.3, parse_scheme(name)
        scale = seeded(seed + index, columns).abs() + 0.5 if steps.get("scaled") else None
        transform = InputTransform(scale=scale, hadamard=steps.get("hadamard"))  # type: ignore[arg-type]
        weight = encode(values, scheme, *fit(values, scheme, "absmax"))
        found.append((f"experts.{index}.proj_{seed}", (weight, transform)))
    return found


def routing() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their experts (expert 3 has none) and the weights of those."""
    chosen = torch.tensor([[0, 1], [1, 0], [4, 2], [2, 1], [0, 4], [4, 1], [1, 2]])
    weights = seeded(9, TOKENS, 2).softmax(-1)
    return seeded(8, TOKENS, HIDDEN), chosen, weights


def applied(x: Tensor, weight: Weight) -> Tensor:
    packed, transform = weight
    if transform.scale is not None:
        x = x * transform.scale.double()
    if transform.hadamard is not None:
        x = hadamard_transform(x, transform.hadamard)
    return x @ packed.dequantize(torch.float64).T


def expected(gate: Projection, up: Projection, down: Projection) -> Tensor:
    x, chosen, weights = routing()
    y = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for token in range(TOKENS):
        for place in range(2):
            one, row = int(chosen[token, place]), x[token].double()
            inner = functional.silu(applied(row, gate[one][1])) * applied(row, up[one][1])
            y[token] += weights[token, place] * applied(inner, down[one][1])
    return y


@pytest.mark.parametrize(
    ("formats", "steps", "products"),
    [
        (("ternary-g32", "ternary-g32", "ternary-g32"), {}, 1),
        (("nonary-g32", "nonary-g32", "int8-channel"), {"hadamard": 32}, 1),
        (("ternary", "int4-g32-asym", "nonary"), {}, 2),
        # gate and up of other scales are two products
        (("nonary-g32", "nonary-g32", "nonary-g32"), {"scaled": True}, 2),
    ],
)
def test_every_token_meets_its_experts(
    formats: tuple[str, str, str], steps: dict[str, object], products: int
) -> None:
    gate = projection(formats[0], INNER, HIDDEN, 1, **steps)
    up = projection(formats[1], INNER, HIDDEN, 2, **steps)
    down = projection(formats[2], HIDDEN, INNER, 3, **steps)
    made = ExpertsProduct(gate, up, down, functional.silu, CPU)
    assert len(made.inner) == products
    found = made(*routing())
    torch.testing.assert_close(found.double(), expected(gate, up, down), atol=1e-4, rtol=1e-4)
    half = made(routing()[0].bfloat16(), *routing()[1:])
    assert half.dtype == torch.bfloat16
    assert (half.float() - found).norm() < 0.02 * found.norm()


def test_the_ranks_of_a_tensor_parallel_group_add_up() -> None:
    gate, up = (projection("ternary-g32", INNER, HIDDEN, seed) for seed in (1, 2))
    down = projection("nonary-g32", HIDDEN, INNER, 3)

    def of_rank(rank: int, whole: Projection, local: tuple[int, int]) -> Projection:
        return [
            (name, (cut(w, shard_of(w.shape, local, rank, 4, name)), transform))
            for name, (w, transform) in whole
        ]

    total = torch.zeros(TOKENS, HIDDEN)
    for rank in range(4):
        narrow = [of_rank(rank, each, (INNER // 4, HIDDEN)) for each in (gate, up)]
        last = of_rank(rank, down, (HIDDEN, INNER // 4))
        total += ExpertsProduct(*narrow, last, functional.silu, CPU)(*routing())
    torch.testing.assert_close(total.double(), expected(gate, up, down), atol=1e-4, rtol=1e-4)


def test_experts_that_differ_are_refused_by_name() -> None:
    gate = projection("ternary-g32", INNER, HIDDEN, 1)
    down = projection("ternary-g32", HIDDEN, INNER, 3)
    mixed = [*gate[:2], projection("nonary-g32", INNER, HIDDEN, 1)[2], *gate[3:]]
    with pytest.raises(UnsupportedError, match=r"experts\.2\.proj_1 is nonary-g32 .*ternary-g32"):
        ExpertsProduct(mixed, gate, down, functional.silu, CPU)
    name, (weight, transform) = down[4]
    turned = [*down[:4], (name, (weight, replace(transform, hadamard=32)))]
    with pytest.raises(UnsupportedError, match=r"experts\.4\.proj_3 is .*hadamard 32"):
        ExpertsProduct(gate, gate, turned, functional.silu, CPU)
