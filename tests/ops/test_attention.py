"""attention: values worked out by hand, torch's own operation, views, bad input."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tercet.errors import UnsupportedError
from tercet.kernel.select import load, using
from tercet.ops.attention import attention
from tercet.ops.attention.op import OP, cost
from tercet.ops.attention.visible import see

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("name", ["triton", "torch"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@both
def test_golden_values(name: str) -> None:
    """Scores of 0 and log(3): shares of a quarter and three quarters; the first sees itself."""
    q = torch.tensor([1.0, 1.0], device=DEVICE).reshape(1, 2, 1, 1)
    keys = torch.tensor([0.0, math.log(3)], device=DEVICE).reshape(1, 1, 2, 1)
    values = torch.tensor([8.0, 16.0], device=DEVICE).reshape(1, 1, 2, 1)
    with using(OP, load(OP, name)):
        causal = attention(q, keys, values, scale=1.0)
        full = attention(q, keys, values, scale=1.0, causal=False)
        alone = attention(q, keys, values, scale=1.0, window=1)
        capped = attention(q, keys, values, scale=1.0, soft_cap=1e-6)
    torch.testing.assert_close(causal.flatten().cpu(), torch.tensor([8.0, 14.0]))
    torch.testing.assert_close(full.flatten().cpu(), torch.tensor([14.0, 14.0]))
    assert alone.flatten().tolist() == [8.0, 16.0]
    torch.testing.assert_close(capped.flatten().cpu(), torch.tensor([8.0, 12.0]))


@both
@pytest.mark.parametrize(("new", "window"), [(70, 0), (21, 0), (70, 33), (21, 5)])
def test_agrees_with_torch(name: str, new: int, window: int) -> None:
    """Of a cache that holds more positions than are seen, and queries out of a wider row."""
    q = random(2, new, 12, 24)[:, :, 4:10]
    keys, values = (random(2, 3, 90, 24, seed=seed)[:, :, :70] for seed in (1, 2))
    mask = see(new, 70, True, window, torch.device(DEVICE))
    expected = scaled_dot_product_attention(q.transpose(1, 2), keys, values, mask, enable_gqa=True)
    with using(OP, load(OP, name)):
        found = attention(q, keys, values, window=window)
    torch.testing.assert_close(found.transpose(1, 2), expected)


@both
def test_queries_before_the_first_position_see_nothing(name: str) -> None:
    q, keys, values = random(1, 5, 2, 8), random(1, 1, 3, 8, seed=1), random(1, 1, 3, 8, seed=2)
    with using(OP, load(OP, name)):
        found = attention(q, keys, values)
        last = attention(q[:, 2:], keys, values)
    assert not found[:, :2].any()
    torch.testing.assert_close(found[:, 2:], last)


def test_small_shares_of_float16_are_not_lost() -> None:
    """2^-20 of 512 positions each, of which float16 alone would keep a few bits."""
    keys = torch.zeros(1, 1, 513, 16, dtype=torch.float16, device=DEVICE)
    keys[0, 0, 0, 0] = 1.0
    q = torch.zeros(1, 1, 1, 16, dtype=torch.float16, device=DEVICE)
    q[..., 0] = 20.3
    values = torch.full((1, 1, 513, 16), 60000.0, dtype=torch.float16, device=DEVICE)
    values[0, 0, 0] = 0.0
    share = 2.0 ** -float(q[0, 0, 0, 0])
    expected = 60000.0 * 512 * share / (1 + 512 * share)
    with using(OP, load(OP, "triton")):
        found = attention(q, keys, values, scale=math.log(2))
    torch.testing.assert_close(
        found.double().cpu(), torch.full((1, 1, 1, 16), expected, dtype=torch.float64),
        rtol=2**-10, atol=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("new", range(6))
@pytest.mark.parametrize("window", range(8))
def test_cost_counts_the_pairs_that_are_seen(new: int, window: int) -> None:
    q, keys = torch.empty(3, new, 4, 8, device="meta"), torch.empty(3, 2, 5, 8, device="meta")
    pairs = int(see(new, 5, True, window, torch.device("cpu")).sum())
    given = {"q": q, "keys": keys, "values": keys, "causal": True, "window": window}
    assert cost(given).flops == 4 * 3 * 4 * 8 * pairs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"keys": torch.zeros(1, 2, 4, 6), "values": torch.zeros(1, 2, 4, 6)}, "must divide"),
        ({"keys": torch.zeros(1, 1, 4, 7), "values": torch.zeros(1, 1, 4, 7)}, "must be equal"),
        ({"values": torch.zeros(1, 1, 5, 6)}, r"must be \[B, T, H, D\]"),
        ({"q": torch.zeros(1, 4, 3, 6).half()}, "all must be one of"),
        ({"window": -1}, "at least 0"),
        ({"window": 2, "causal": False}, "a window needs causal"),
        ({"soft_cap": -1.0}, "at least 0"),
    ],
)
def test_bad_input_is_refused_in_words(change: dict[str, object], said: str) -> None:
    given = {
        "q": torch.zeros(1, 4, 3, 6),
        "keys": torch.zeros(1, 1, 4, 6),
        "values": torch.zeros(1, 1, 4, 6),
    }
    with pytest.raises(UnsupportedError, match=said):
        attention(**{**given, **change})  # pyright: ignore[reportArgumentType]
