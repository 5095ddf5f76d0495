"""rope: values worked out by hand, transformers' own rotation, views, bad input."""

import math

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tercet.errors import UnsupportedError
from tercet.kernel.select import load, using
from tercet.kernel.tuned import force
from tercet.ops.rope import rope
from tercet.ops.rope.cases import angles
from tercet.ops.rope.op import OP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("name", ["triton", "torch"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def turned(tokens: int, half: int) -> tuple[Tensor, Tensor]:
    angle = angles(0, tokens, half, 0, DEVICE)
    return angle.cos().float(), angle.sin().float()


@both
@pytest.mark.parametrize(
    ("interleaved", "expected"),
    [(False, [-3.0, 2.0, 1.0, 4.0, 5.0]), (True, [-2.0, 1.0, 3.0, 4.0, 5.0])],
)
def test_golden_values(name: str, interleaved: bool, expected: list[float]) -> None:
    """A quarter turn of the first pair, none of the second; the fifth column is not rotated."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=DEVICE).reshape(1, 1, 1, 5)
    cos, sin = torch.tensor([[0.0, 1.0]], device=DEVICE), torch.tensor([[1.0, 0.0]], device=DEVICE)
    with using(OP, load(OP, name)):
        q, k = rope(x, 2 * x, cos, sin, interleaved)
    assert q.flatten().tolist() == expected
    assert k.flatten().tolist() == [2 * value for value in expected]


@both
def test_agrees_with_transformers(name: str) -> None:
    q, k = random(2, 6, 4, 16), random(2, 6, 2, 16, seed=1)
    cos, sin = turned(6, 8)
    wide = (torch.cat((part, part), -1).expand(2, -1, -1) for part in (cos, sin))
    expected = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), *wide)
    with using(OP, load(OP, name)):
        found = rope(q, k, cos, sin)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.transpose(1, 2))


@both
@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_the_distance_only(name: str, interleaved: bool) -> None:
    """What the embedding is for: <q at m, k at n> is a function of m - n."""
    q, k = random(1, 1, 1, 32).expand(1, 9, 1, 32), random(1, 1, 1, 32, seed=1).expand(1, 9, 1, 32)
    with using(OP, load(OP, name)):
        a, b = rope(q, k, *turned(9, 16), interleaved)
    products = a.reshape(9, 32) @ b.reshape(9, 32).T
    for distance in range(-4, 5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


@both
def test_reads_slices_of_a_fused_projection_in_place(name: str) -> None:
    fused = random(2, 5, (4 + 2 * 2) * 8)
    q, k, _ = fused.split((32, 16, 16), -1)
    q, k = q.unflatten(-1, (4, 8)), k.unflatten(-1, (2, 8))
    cos, sin = turned(5, 3)
    with using(OP, load(OP, name)):
        found = rope(q, k, cos, sin)
        copied = rope(q.contiguous(), k.contiguous(), cos, sin)
        heads_first = rope(q.transpose(1, 2).contiguous().transpose(1, 2), k, cos, sin)
    for one, other, third in zip(found, copied, heads_first, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


@both
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_turns_back(name: str, interleaved: bool) -> None:
    q, k = random(1, 4, 3, 12).requires_grad_(), random(1, 4, 1, 12, seed=1).requires_grad_()
    with using(OP, load(OP, name)):
        a, b = rope(q, k, *turned(4, 5), interleaved)
        back = torch.autograd.grad((a, b), (q, k), (a.detach(), b.detach()))
    torch.testing.assert_close(back, (q.detach(), k.detach()))


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("heads", [1, 4, 32])
def test_every_tile_gives_the_same(tokens: int, heads: int) -> None:
    q, k = random(3, 7, 5, 24), random(3, 7, 2, 24, seed=1)
    angle = angles(3, 7, 10, 0, DEVICE)
    given = q, k, angle.cos().float(), angle.sin().float(), True
    options = {"TOKENS": tokens, "HEADS": heads, "num_warps": 1}
    with using(OP, load(OP, "triton")), force("rope", "triton", "forward", options):
        found = rope(*given)
    for one, other in zip(found, OP.reference(*given), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


Q, K, ANGLE = torch.ones(1, 3, 2, 8), torch.ones(1, 3, 1, 8), torch.ones(3, 4)


@pytest.mark.parametrize(
    ("q", "k", "cos", "sin", "message"),
    [
        (Q.int(), K.int(), ANGLE, ANGLE, "q is torch.int32"),
        (Q, K.half(), ANGLE, ANGLE, "both must be float32"),
        (Q, K, ANGLE.half(), ANGLE.half(), "q's dtype or both float32"),
        (Q.half(), K.half(), ANGLE, ANGLE.half(), "q's dtype or both float32"),
        (Q, K[:, :2], ANGLE, ANGLE, "transpose heads behind positions"),
        (Q[0], K[0], ANGLE, ANGLE, r"must be \[B, S, H, D\]"),
        (Q, K, ANGLE[:2], ANGLE[:2], r"must be \[3, R\] or \[1, 3, R\]"),
        (Q, K, ANGLE, ANGLE[:, :2], r"must be \[3, R\]"),
        (Q, K, torch.ones(3, 8), torch.ones(3, 8), "give each angle once"),
        (Q, K, ANGLE.to("meta"), ANGLE, "cos on meta: move one"),
    ],
)
def test_bad_input_is_named(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        rope(q, k, cos, sin)


def test_a_rotation_keeps_lengths() -> None:
    q, k = random(1, 3, 2, 8), random(1, 3, 1, 8, seed=1)
    a, _ = rope(q, k, *turned(3, 4))
    torch.testing.assert_close(a.norm(dim=-1), q.norm(dim=-1))
    assert not math.isclose(float(a[0, 1, 0, 0]), float(q[0, 1, 0, 0]))
