"""append_kv: new queries and keys rotated, new keys and values written into their blocks."""

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
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.append_kv.cases import CASES, inputs, shapes
from tercet.ops.append_kv.reference import magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ARGUMENTS = (
    "Tensor qkv, Tensor cos, Tensor sin, {keys}, {values}, Tensor blocks, Tensor lengths, "
    "Tensor? query_norm, Tensor? key_norm, float eps"
)


def append_kv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    *,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """What stands between a layer's q|k|v product and its attention, in one launch.

    Queries and keys are normalized where weights are given (RMSNorm of each head), then rotated
    (rope, pairs (i, i + R), in float32); keys and values go into their blocks, as
    `paged_attention` reads them: position n of sequence b is row n % S of block blocks[b, n // S].
    New position i of a sequence is lengths[b] - Q + i.

    Args:
        qkv: [B, Q, (H + 2 G) D]: queries, keys and values of the new positions; float32, float16
            or bfloat16.
        cos, sin: [L, R] of each position and pair, 2 R <= D; of qkv's dtype or float32.
        keys, values: [P, G, S, D] of qkv's dtype; written in place.
        blocks: int32 [B, T]; no block of a written position may be named twice.
        lengths: int32 [B], the new positions included. Positions below 0 or from min(T * S, L) on,
            and those in entries outside of [0, P), are not written; q is 0 for the former.
        query_norm, key_norm: [D], of qkv's dtype or float32, both or neither.
        eps: added to the mean square.

    Returns:
        q [B, Q, H, D], of qkv's dtype, contiguous. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _in_place(qkv, cos, sin, keys, values, blocks, lengths, query_norm, key_norm, eps)


def append_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    *,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """`append_kv_` on copies of the blocks: (q, keys, values), the arguments as they were."""
    return _forward(qkv, cos, sin, keys, values, blocks, lengths, query_norm, key_norm, eps)


def _check(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
) -> None:
    if qkv.dtype not in _DTYPES or keys.dtype != qkv.dtype or values.dtype != qkv.dtype:
        raise UnsupportedError(
            f"append_kv: qkv is {qkv.dtype}, keys {keys.dtype}, values {values.dtype}: all must be "
            "float32, all float16 or all bfloat16"
        )
    if cos.dtype not in (qkv.dtype, torch.float32) or sin.dtype != cos.dtype:
        raise UnsupportedError(
            f"append_kv: qkv is {qkv.dtype}, cos {cos.dtype}, sin {sin.dtype}: cos and sin must "
            "both be of qkv's dtype or both float32"
        )
    if qkv.dim() != 3 or keys.dim() != 4 or keys.shape != values.shape:
        raise UnsupportedError(
            f"append_kv: qkv is {list(qkv.shape)}, keys {list(keys.shape)}, values "
            f"{list(values.shape)}: they must be [B, Q, (H + 2 G) D], and [P, G, S, D] both"
        )
    groups, width = keys.shape[1], keys.shape[3]
    if keys.stride(3) != 1 or values.stride(3) != 1:
        raise UnsupportedError(
            f"append_kv: keys have strides {keys.stride()}, values {values.stride()}: a head's "
            "columns must lie side by side, for they are written in place"
        )
    if not width or qkv.shape[2] % width or qkv.shape[2] < 2 * groups * width:
        raise UnsupportedError(
            f"append_kv: qkv is {list(qkv.shape)}, keys {list(keys.shape)}: the last axis of qkv "
            f"must be (H + 2 * {groups}) * {width}"
        )
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[-1] > width:
        raise UnsupportedError(
            f"append_kv: cos is {list(cos.shape)}, sin {list(sin.shape)}: both must be [L, R] with "
            f"2 R at most {width}; give each angle once, not repeated for the second half"
        )
    batch = qkv.shape[0]
    if blocks.dim() != 2 or blocks.shape[0] != batch or tuple(lengths.shape) != (batch,):
        raise UnsupportedError(
            f"append_kv: blocks are {list(blocks.shape)}, lengths {list(lengths.shape)}: they must "
            f"be [{batch}, T] and [{batch}]"
        )
    if blocks.dtype != torch.int32 or lengths.dtype != torch.int32:
        raise UnsupportedError(
            f"append_kv: blocks are {blocks.dtype}, lengths {lengths.dtype}: both must be int32"
        )
    if (query_norm is None) != (key_norm is None):
        raise UnsupportedError("append_kv: query_norm and key_norm come together or not at all")
    for name, weight in (("query_norm", query_norm), ("key_norm", key_norm)):
        if weight is not None and (
            tuple(weight.shape) != (width,) or weight.dtype not in (qkv.dtype, torch.float32)
        ):
            raise UnsupportedError(
                f"append_kv: {name} is {weight.dtype} {list(weight.shape)}: it must be "
                f"{qkv.dtype} or torch.float32 [{width}]"
            )
    on_one_device(
        "append_kv", "qkv", qkv, cos=cos, sin=sin, keys=keys, values=values, blocks=blocks,
        lengths=lengths, query_norm=query_norm, key_norm=key_norm,
    )  # fmt: skip


def _run_in_place(qkv: Tensor, *arguments: Any) -> Tensor:
    _check(qkv, *arguments[:-1])
    return choose(OP, qkv.device.type, qkv.dtype).forward(qkv, *arguments)


def _fake_in_place(qkv: Tensor, *arguments: Any) -> Tensor:
    _check(qkv, *arguments[:-1])
    _, _, keys, *_ = arguments
    groups, width = keys.shape[1], keys.shape[3]
    return qkv.new_empty((*qkv.shape[:2], qkv.shape[2] // width - 2 * groups, width))


def _run(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = (part.clone(memory_format=torch.contiguous_format) for part in (keys, values))
    return _run_in_place(qkv, cos, sin, keys, values, *arguments), keys, values


def _fake(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = keys.new_empty(keys.shape), values.new_empty(values.shape)
    return _fake_in_place(qkv, cos, sin, keys, values, *arguments), keys, values


_forward = define(
    "append_kv",
    f"({_ARGUMENTS.format(keys='Tensor keys', values='Tensor values')}) "
    "-> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_in_place = define(
    "append_kv_",
    f"({_ARGUMENTS.format(keys='Tensor(a!) keys', values='Tensor(b!) values')}) -> Tensor",
    run=_run_in_place,
    fake=_fake_in_place,
)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """qkv, the new positions' angles and the blocks read once; q and the new blocks written."""
    qkv, cos, keys = (arguments[name] for name in ("qkv", "cos", "keys"))
    tokens = qkv.shape[0] * qkv.shape[1]
    heads = qkv.numel() * qkv.element_size()
    angles = 2 * tokens * cos.shape[1] * cos.element_size()
    copied = 2 * keys.numel() * keys.element_size()
    new = 2 * tokens * keys.shape[1] * keys.shape[3] * keys.element_size()
    return Cost(
        flops=3 * qkv.numel(),
        bytes_read=heads + angles + copied,
        bytes_written=heads - new + copied,
    )


OP = Op(
    name="append_kv",
    axes=(
        Axis(name="B", meaning="sequences"),
        Axis(name="Q", meaning="new positions of a sequence", most=65),
        Axis(name="H", meaning="query heads", most=128),
        Axis(name="G", meaning="key and value heads", most=64),
        Axis(name="D", meaning="width of a head", most=512),
        Axis(name="R", meaning="rotated pairs of a head", most=256),
        Axis(name="L", meaning="positions that have angles"),
        Axis(name="P", meaning="blocks of the cache"),
        Axis(name="S", meaning="positions of a block", most=512),
        Axis(name="T", meaning="blocks of a sequence", most=65),
        Axis(name="N", meaning="columns of q|k|v"),
    ),
    tensors=(
        TensorSpec(name="qkv", axes=("B", "Q", "N"), dtypes=_DTYPES),
        TensorSpec(name="cos", axes=("L", "R"), dtypes=_DTYPES),
        TensorSpec(name="sin", axes=("L", "R"), dtypes=_DTYPES),
        TensorSpec(name="keys", axes=("P", "G", "S", "D"), dtypes=_DTYPES),
        TensorSpec(name="values", axes=("P", "G", "S", "D"), dtypes=_DTYPES),
        TensorSpec(name="blocks", axes=("B", "T"), dtypes=(torch.int32,)),
        TensorSpec(name="lengths", axes=("B",), dtypes=(torch.int32,)),
        TensorSpec(name="query_norm", axes=("D",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="key_norm", axes=("D",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="q", axes=("B", "Q", "H", "D"), dtypes=_DTYPES, role="output"),
        TensorSpec(name="new_keys", axes=("P", "G", "S", "D"), dtypes=_DTYPES, role="output"),
        TensorSpec(name="new_values", axes=("P", "G", "S", "D"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32, relative=2e-6, reason="a norm, two float32 products, their sum"
        ),
        Tolerance(
            dtype=torch.float16, relative=2**-10, inner=4e-6, reason="one rounding to 11 bits"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8, inner=4e-6, reason="one rounding to 8 bits"
        ),
    ),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.append_kv.triton",
            language="triton",
            space={"num_warps": (1, 2, 4)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.append_kv.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    # another number in the table could name a block twice
    derived={"blocks": ()},
    baselines=(Baseline(name="eager", path="tercet.ops.append_kv.baselines:eager"),),
)
