"""paged_attention: attention of new positions over keys and values that lie in blocks."""

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
from tercet.ops.paged_attention.cases import CASES, inputs, shapes
from tercet.ops.paged_attention.reference import magnitude, reference
from tercet.packed_weight.cached_rows import (
    CODE_DTYPES,
    SCALE_DTYPES,
    check_cached,
    width_of,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_WIDTH = 256
MOST_NEW = 16


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    *,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attention of each sequence's last Q positions over all of its positions.

    y = softmax(cap(scale q k^T)) v in float32, rounded once. Keys and values lie in blocks of S
    positions (Kwon et al. 2023, arXiv:2309.06180): position n of sequence b is row n % S of block
    blocks[b, n // S]. Query i is at position lengths[b] - Q + i and sees the positions up to its
    own. Head h reads key head h // (H / G).

    Args:
        q: [B, Q, H, D], rotated; float32, float16 or bfloat16; Q at most 16, D at most 256.
        keys, values: [P, G, S, D] of q's dtype, the new positions included; strides as they come.
            What a query sees must be finite. G divides H. Or codes, int8 or float8_e4m3fn both, of
            which each row of D has a scale; or uint8 both, rows of D/2 bytes in 4 bits as
            `int4_rows` has them, q then turned as the keys are.
        blocks: int32 [B, T]; positions in entries outside of [0, P) are not seen.
        lengths: int32 [B]; positions from T * S on are not seen.
        key_scales, value_scales: float32 [P, G, S], what codes of 8 bits are multiplied by;
            bfloat16 [P, G, S, 2 C], step and least of the groups of 4 bits; None both where keys
            and values are no codes.
        scale: of the scores; None for D ** -0.5.
        window: positions that a query sees, its own included; 0 for all.
        soft_cap: cap(s) = soft_cap tanh(s / soft_cap); 0 for none.

    Returns:
        y [B, Q, H, D], of q's dtype; 0 where a query sees nothing. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    return _call(
        q, keys, values, blocks, lengths, key_scales, value_scales, scale, window, soft_cap
    )


def _check(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    window: int,
) -> None:
    check_cached("paged_attention", "q", q, keys, values, key_scales, value_scales)
    if q.dim() != 4 or keys.dim() != 4 or keys.shape != values.shape:
        raise UnsupportedError(
            f"paged_attention: q is {list(q.shape)}, keys {list(keys.shape)}, values "
            f"{list(values.shape)}: they must be [B, Q, H, D], [P, G, S, D] and [P, G, S, D]"
        )
    batch, new, heads, width = q.shape
    groups = keys.shape[1]
    if width_of(keys) != width or (heads % groups if groups else heads):
        raise UnsupportedError(
            f"paged_attention: q is {list(q.shape)}, keys {list(keys.shape)} {keys.dtype}: D must "
            "be equal (uint8 keys are D/2 bytes), and the key heads G must divide the query heads H"
        )
    if new > MOST_NEW or width > MOST_WIDTH:
        raise UnsupportedError(
            f"paged_attention: {new} new positions of heads {width} wide: at most {MOST_NEW} "
            f"positions and {MOST_WIDTH} columns are taken"
        )
    if blocks.dim() != 2 or blocks.shape[0] != batch or tuple(lengths.shape) != (batch,):
        raise UnsupportedError(
            f"paged_attention: blocks are {list(blocks.shape)}, lengths {list(lengths.shape)}: "
            f"with q {list(q.shape)} they must be [{batch}, T] and [{batch}]"
        )
    if blocks.dtype != torch.int32 or lengths.dtype != torch.int32 or window < 0:
        raise UnsupportedError(
            f"paged_attention: blocks are {blocks.dtype}, lengths {lengths.dtype}, window "
            f"{window}: both must be int32, and window at least 0"
        )
    on_one_device(
        "paged_attention", "q", q, keys=keys, values=values, blocks=blocks, lengths=lengths,
        key_scales=key_scales, value_scales=value_scales,
    )  # fmt: skip


def _run(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    _check(q, keys, values, blocks, lengths, key_scales, value_scales, window)
    run = choose(OP, q.device.type, q.dtype).forward
    return run(q, keys, values, blocks, lengths, key_scales, value_scales, scale, window, soft_cap)


def _fake(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None,
    scale: float, window: int, soft_cap: float,
) -> Tensor:  # fmt: skip
    del scale, soft_cap
    _check(q, keys, values, blocks, lengths, key_scales, value_scales, window)
    return q.new_empty(q.shape)


_forward = define(
    "paged_attention",
    "(Tensor q, Tensor keys, Tensor values, Tensor blocks, Tensor lengths, Tensor? key_scales, "
    "Tensor? value_scales, float scale, int window, float soft_cap) -> Tensor",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """Each position's key and value read once, as if every table were full; q once, y once.

    A window is counted: a query needs no more than its positions.
    """
    q, keys, blocks = (arguments[name] for name in ("q", "keys", "blocks"))
    batch, new, heads, width = q.shape
    seen = blocks.shape[1] * keys.shape[2]
    if window := arguments["window"]:
        seen = min(seen, window + new - 1)
    scales = arguments["key_scales"]
    row = keys.shape[3] * keys.element_size()
    row += 0 if scales is None else scales.shape[3:].numel() * scales.element_size()
    cache = 2 * batch * seen * keys.shape[1] * row
    small = blocks.numel() * 4 + batch * 4
    return Cost(
        flops=4 * batch * new * heads * seen * width,
        bytes_read=cache + q.numel() * q.element_size() + small,
        bytes_written=q.numel() * q.element_size(),
    )


OP = Op(
    name="paged_attention",
    axes=(
        Axis(name="B", meaning="sequences", most=2048),
        Axis(name="Q", meaning="new positions of a sequence", most=MOST_NEW),
        Axis(name="H", meaning="query heads", most=128),
        Axis(name="G", meaning="key and value heads", most=64),
        Axis(name="D", meaning="width of a head", most=MOST_WIDTH),
        Axis(name="P", meaning="blocks of the cache"),
        Axis(name="S", meaning="positions of a block", most=512),
        Axis(name="T", meaning="blocks of a sequence", most=65),
    ),
    tensors=(
        TensorSpec(name="q", axes=("B", "Q", "H", "D"), dtypes=_DTYPES),
        TensorSpec(name="keys", axes=("P", "G", "S", "D"), dtypes=(*_DTYPES, *CODE_DTYPES)),
        TensorSpec(name="values", axes=("P", "G", "S", "D"), dtypes=(*_DTYPES, *CODE_DTYPES)),
        TensorSpec(name="blocks", axes=("B", "T"), dtypes=(torch.int32,)),
        TensorSpec(name="lengths", axes=("B",), dtypes=(torch.int32,)),
        TensorSpec(name="key_scales", axes=("P", "G", "S"), dtypes=SCALE_DTYPES, optional=True),
        TensorSpec(name="value_scales", axes=("P", "G", "S"), dtypes=SCALE_DTYPES, optional=True),
        TensorSpec(name="y", axes=("B", "Q", "H", "D"), dtypes=_DTYPES, role="output"),
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
            inner=1e-5,
            reason="shares in two parts of 11 bits, one rounding to 11 bits",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-8,
            inner=2e-5,
            reason="shares in two parts of 8 bits, one rounding to 8 bits",
        ),
    ),
    implementations=(
        Implementation(
            name="hopper",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.float16, torch.bfloat16),
                nvcc=True,
                capability=(9, 0),
            ),
            module="tercet.ops.paged_attention.hopper.launch",
            language="cuda",
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.paged_attention.triton",
            language="triton",
            space={"BN": (16, 32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (2, 3, 4)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.paged_attention.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    baselines=(Baseline(name="eager", path="tercet.ops.paged_attention.torch_path:forward"),),
)
