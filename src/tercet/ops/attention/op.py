"""attention: of many new positions over keys and values that lie side by side."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import (
    Axis,
    Baseline,
    Cost,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.direct_call import direct_call
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.attention.cases import CASES, inputs, shapes
from tercet.ops.attention.reference import magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_WIDTH = 256


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attention of the last T positions of each sequence over all of its N positions.

    y = softmax(cap(scale q k^T)) v (Vaswani et al. 2017, arXiv:1706.03762), scores and sums in
    float32, shares of softmax in q's dtype. Query i is at position N - T + i. Head h reads key head
    h // (H / G).

    Args:
        q: [B, T, H, D], rotated; float32, float16 or bfloat16; D at most 256.
        keys, values: [B, G, N, D] of q's dtype, the new positions included; finite. G divides H.
            All three with strides as they come.
        scale: of the scores; None for D ** -0.5.
        causal: whether a query sees the positions up to its own alone.
        window: how many of these it sees, its own included; 0 for all.
        soft_cap: cap(s) = soft_cap tanh(s / soft_cap); 0 for none.

    Returns:
        y [B, T, H, D], of q's dtype; 0 where a query sees nothing. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes, options or devices that do not fit.
    """
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    return _call(q, keys, values, scale, causal, window, soft_cap)


def _check(
    q: Tensor, keys: Tensor, values: Tensor, causal: bool, window: int, soft_cap: float
) -> None:
    if q.dtype not in _DTYPES or not q.dtype == keys.dtype == values.dtype:
        raise UnsupportedError(
            f"attention: q is {q.dtype}, keys {keys.dtype}, values {values.dtype}: all must be "
            f"one of {', '.join(map(str, _DTYPES))}"
        )
    if q.dim() != 4 or keys.dim() != 4 or keys.shape != values.shape:
        raise UnsupportedError(
            f"attention: q is {list(q.shape)}, keys {list(keys.shape)}, values "
            f"{list(values.shape)}: they must be [B, T, H, D], [B, G, N, D] and [B, G, N, D]"
        )
    batch, _, heads, width = q.shape
    groups = keys.shape[1]
    fits = keys.shape[0] == batch and keys.shape[3] == width <= MOST_WIDTH
    if not fits or (heads % groups if groups else heads):
        raise UnsupportedError(
            f"attention: q is {list(q.shape)}, keys {list(keys.shape)}: B and D must be equal, D "
            f"at most {MOST_WIDTH}, and the key heads G must divide the query heads H"
        )
    if window < 0 or (window and not causal) or soft_cap < 0:
        raise UnsupportedError(
            f"attention: window {window}, soft_cap {soft_cap}, causal {causal}: window and "
            "soft_cap must be at least 0, and a window needs causal"
        )
    on_one_device("attention", "q", q, keys=keys, values=values)


def _run(
    q: Tensor, keys: Tensor, values: Tensor,
    scale: float, causal: bool, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    _check(q, keys, values, causal, window, soft_cap)
    run = choose(OP, q.device.type, q.dtype).forward
    return run(q, keys, values, scale, causal, window, soft_cap)


def _fake(
    q: Tensor, keys: Tensor, values: Tensor,
    scale: float, causal: bool, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    del scale
    _check(q, keys, values, causal, window, soft_cap)
    return q.new_empty(q.shape)


_forward = define(
    "attention",
    "(Tensor q, Tensor keys, Tensor values, float scale, bool causal, int window, float soft_cap) "
    "-> Tensor",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def _scores(new: int, length: int, causal: bool, window: int) -> int:
    """How many pairs of a query and a position that it sees there are."""
    if not causal:
        return new * length
    most = window or length

    def of_first(count: int) -> int:
        rising = min(count, most)
        return rising * (rising + 1) // 2 + (count - rising) * most

    return of_first(length) - of_first(max(length - new, 0))


def cost(arguments: Mapping[str, Any]) -> Cost:
    """Two products of each query and each position that it sees; each tensor moved once."""
    q, keys = arguments["q"], arguments["keys"]
    batch, new, heads, width = q.shape
    pairs = _scores(new, keys.shape[2], arguments["causal"], arguments["window"])
    return Cost(
        flops=4 * batch * heads * width * pairs,
        bytes_read=(q.numel() + 2 * keys.numel()) * q.element_size(),
        bytes_written=q.numel() * q.element_size(),
    )


OP = Op(
    name="attention",
    axes=(
        Axis(name="B", meaning="sequences", most=2048),
        Axis(name="T", meaning="new positions of a sequence", most=4096),
        Axis(name="H", meaning="query heads", most=128),
        Axis(name="G", meaning="key and value heads", most=64),
        Axis(name="N", meaning="positions of a sequence", most=4096),
        Axis(name="D", meaning="width of a head", most=MOST_WIDTH),
    ),
    tensors=(
        TensorSpec(name="q", axes=("B", "T", "H", "D"), dtypes=_DTYPES),
        TensorSpec(name="keys", axes=("B", "G", "N", "D"), dtypes=_DTYPES),
        TensorSpec(name="values", axes=("B", "G", "N", "D"), dtypes=_DTYPES),
        TensorSpec(name="y", axes=("B", "T", "H", "D"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32, relative=4e-6, reason="float32 scores, exponentials and sums"
        ),
        Tolerance(
            dtype=torch.float16,
            relative=2**-11,
            inner=2**-11,
            reason="shares rounded to 11 bits, and one rounding of the result",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-8,
            inner=2**-8,
            reason="shares rounded to 8 bits, and one rounding of the result",
        ),
    ),
    implementations=(
        Implementation(
            name="hopper",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.float16, torch.bfloat16),
                nvcc=True,
                architecture=(9, 0),
            ),
            module="tercet.ops.attention.hopper.launch",
            language="cuda",
        ),
        Implementation(
            name="sdpa",
            requirement=Requirement(devices=("cuda",), dtypes=(torch.bfloat16,)),
            module="tercet.ops.attention.sdpa",
            language="torch",
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.attention.triton",
            language="triton",
            space={
                "BM": (32, 64, 128),
                "BN": (16, 32, 64, 128),
                "num_warps": (4, 8),
                "num_stages": (2, 3, 4),
            },
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.attention.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    baselines=(
        Baseline(name="eager", path="tercet.ops.attention.baselines:eager"),
        Baseline(
            name="cudnn",
            path="tercet.ops.attention.baselines:cudnn",
            prepare="tercet.ops.attention.baselines:prepare_cudnn",
        ),
    ),
)
