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
from tercet.kernel.direct_call import direct_call
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.append_kv.cases import CASES, inputs, shapes
from tercet.ops.append_kv.reference import INNER, RELATIVE, magnitude, reference
from tercet.packed_weight.cached_rows import (
    CODE_DTYPES,
    SCALE_DTYPES,
    check_cached,
    is_turned,
    width_of,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TIE = "one code, and only where y is within float32's error of the boundary between two"
# a, b, c, d: what is written in place
_ARGUMENTS = (
    "Tensor qkv, Tensor cos, Tensor sin, Tensor{a} keys, Tensor{b} values, Tensor blocks, "
    "Tensor lengths, Tensor{c}? key_scales, Tensor{d}? value_scales, Tensor? query_norm, "
    "Tensor? key_norm, float eps, Tensor? key_offset=None"
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
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
    key_offset: Tensor | None = None,
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
        keys, values: [P, G, S, D] of qkv's dtype, or int8 or float8_e4m3fn codes both, or uint8
            both, rows of D/2 bytes in 4 bits; written in place.
        blocks: int32 [B, T]; no block of a written position may be named twice.
        lengths: int32 [B], the new positions included. Positions below 0 or from min(T * S, L) on,
            and those in entries outside of [0, P), are not written; q is 0 for the former.
        key_scales, value_scales: written in place where keys and values are codes, else None: of 8
            bits float32 [P, G, S], each new row of D quantized as `quantize_activation` has it; of
            4 bits bfloat16 [P, G, S, 2 C], rows quantized as `int4_rows` has them, new keys and
            queries both turned (`int4_rows.turn`) behind their rotation.
        query_norm, key_norm: [D], of qkv's dtype or float32, both or neither.
        eps: added to the mean square.
        key_offset: float32 [G, D], taken off turned keys of 4 bits before they become codes; else
            None. No share of softmax depends on a vector that is taken off all keys of a head.

    Returns:
        q [B, Q, H, D], of qkv's dtype, contiguous. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _call_in_place(
        qkv, cos, sin, keys, values, blocks, lengths, key_scales, value_scales,
        query_norm, key_norm, eps, key_offset,
    )  # fmt: skip


def append_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    *,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 1e-6,
    key_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`append_kv_` on copies of the blocks, the arguments as they were.

    (q, keys, values, key_scales, value_scales); scales without an element where there are none.
    """
    return _call(
        qkv, cos, sin, keys, values, blocks, lengths, key_scales, value_scales,
        query_norm, key_norm, eps, key_offset,
    )  # fmt: skip


def _check(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
    key_offset: Tensor | None = None,
) -> None:
    del eps
    check_cached("append_kv", "qkv", qkv, keys, values, key_scales, value_scales)
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
    groups, width = keys.shape[1], width_of(keys)
    if keys.stride(3) != 1 or values.stride(3) != 1:
        raise UnsupportedError(
            f"append_kv: keys have strides {keys.stride()}, values {values.stride()}: a head's "
            "columns must lie side by side, for they are written in place"
        )
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if scales is not None and scales.dim() == 4 and scales.stride(3) != 1:
            raise UnsupportedError(
                f"append_kv: {name} have strides {scales.stride()}: those of a row must lie side "
                "by side, for they are written in place"
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
    if key_offset is not None and (
        not is_turned(keys.dtype)
        or tuple(key_offset.shape) != (groups, width)
        or key_offset.dtype != torch.float32
    ):
        raise UnsupportedError(
            f"append_kv: key_offset is {key_offset.dtype} {list(key_offset.shape)}, keys "
            f"{keys.dtype}: it must be torch.float32 [{groups}, {width}], and is of keys in 4 bits "
            "(torch.uint8) alone"
        )
    on_one_device(
        "append_kv", "qkv", qkv, cos=cos, sin=sin, keys=keys, values=values, blocks=blocks,
        lengths=lengths, key_scales=key_scales, value_scales=value_scales,
        query_norm=query_norm, key_norm=key_norm, key_offset=key_offset,
    )  # fmt: skip


def _run_in_place(qkv: Tensor, *arguments: Any) -> Tensor:
    _check(qkv, *arguments)
    return choose(OP, qkv.device.type, qkv.dtype).forward(qkv, *arguments)


def _fake_in_place(qkv: Tensor, *arguments: Any) -> Tensor:
    _check(qkv, *arguments)
    _, _, keys, *_ = arguments
    groups, width = keys.shape[1], width_of(keys)
    return qkv.new_empty((*qkv.shape[:2], qkv.shape[2] // width - 2 * groups, width))


def _run(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None, *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    keys, values = _copy(keys), _copy(values)
    if key_scales is not None and value_scales is not None:
        key_scales, value_scales = _copy(key_scales), _copy(value_scales)
    scales = key_scales, value_scales
    q = _run_in_place(qkv, cos, sin, keys, values, blocks, lengths, *scales, *arguments)
    return q, keys, values, _or_empty(key_scales, qkv), _or_empty(value_scales, qkv)


def _fake(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, blocks: Tensor,
    lengths: Tensor, key_scales: Tensor | None, value_scales: Tensor | None, *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    keys, values = _like(keys), _like(values)
    if key_scales is not None and value_scales is not None:
        key_scales, value_scales = _like(key_scales), _like(value_scales)
    scales = key_scales, value_scales
    q = _fake_in_place(qkv, cos, sin, keys, values, blocks, lengths, *scales, *arguments)
    return q, keys, values, _or_empty(key_scales, qkv), _or_empty(value_scales, qkv)


def _copy(part: Tensor) -> Tensor:
    return part.clone(memory_format=_order(part))


def _like(part: Tensor) -> Tensor:
    return torch.empty_like(part, memory_format=_order(part))


def _order(part: Tensor) -> torch.memory_format:
    """Of a copy: as the blocks lie, for a kernel writes to a cache in its owner's layout."""
    return torch.preserve_format if part.stride(-1) == 1 else torch.contiguous_format


def _or_empty(scales: Tensor | None, qkv: Tensor) -> Tensor:
    return qkv.new_empty(0, dtype=torch.float32) if scales is None else scales


_forward = define(
    "append_kv",
    f"({_ARGUMENTS.format(a='', b='', c='', d='')}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)
_in_place = define(
    "append_kv_",
    f"({_ARGUMENTS.format(a='(a!)', b='(b!)', c='(c!)', d='(d!)')}) -> Tensor",
    run=_run_in_place,
    fake=_fake_in_place,
)
_call_in_place = direct_call(_in_place)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """qkv, the new positions' angles and the blocks read once; q and the new blocks written."""
    qkv, cos, keys = (arguments[name] for name in ("qkv", "cos", "keys"))
    tokens = qkv.shape[0] * qkv.shape[1]
    heads = qkv.numel() * qkv.element_size()
    angles = 2 * tokens * cos.shape[1] * cos.element_size()
    scales = arguments["key_scales"]
    row = keys.shape[3] * keys.element_size()
    row += 0 if scales is None else scales.shape[3:].numel() * scales.element_size()
    copied = 2 * keys.shape[:3].numel() * row
    new = 2 * tokens * keys.shape[1] * width_of(keys) * qkv.element_size()
    return Cost(
        flops=3 * qkv.numel(),
        bytes_read=heads + angles + copied,
        bytes_written=heads - new + copied,
    )


OP = Op(
    name="append_kv",
    axes=(
        Axis(name="B", meaning="sequences", most=2048),
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
        TensorSpec(name="keys", axes=("P", "G", "S", "D"), dtypes=(*_DTYPES, *CODE_DTYPES)),
        TensorSpec(name="values", axes=("P", "G", "S", "D"), dtypes=(*_DTYPES, *CODE_DTYPES)),
        TensorSpec(name="blocks", axes=("B", "T"), dtypes=(torch.int32,)),
        TensorSpec(name="lengths", axes=("B",), dtypes=(torch.int32,)),
        TensorSpec(name="key_scales", axes=("P", "G", "S"), dtypes=SCALE_DTYPES, optional=True),
        TensorSpec(name="value_scales", axes=("P", "G", "S"), dtypes=SCALE_DTYPES, optional=True),
        TensorSpec(name="query_norm", axes=("D",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="key_norm", axes=("D",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="key_offset", axes=("G", "D"), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="q", axes=("B", "Q", "H", "D"), dtypes=_DTYPES, role="output"),
        TensorSpec(
            name="new_keys",
            axes=("P", "G", "S", "D"),
            dtypes=(*_DTYPES, *CODE_DTYPES),
            role="output",
        ),
        TensorSpec(
            name="new_values",
            axes=("P", "G", "S", "D"),
            dtypes=(*_DTYPES, *CODE_DTYPES),
            role="output",
        ),
        TensorSpec(
            name="new_key_scales",
            axes=("P", "G", "S"),
            dtypes=SCALE_DTYPES,
            optional=True,
            role="output",
        ),
        TensorSpec(
            name="new_value_scales",
            axes=("P", "G", "S"),
            dtypes=SCALE_DTYPES,
            optional=True,
            role="output",
        ),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.int8, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.float8_e4m3fn, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.uint8, relative=1.0, reason=_TIE),
        Tolerance(
            dtype=torch.float32,
            relative=RELATIVE,
            reason="a norm, two float32 products, their sum",
        ),
        Tolerance(
            dtype=torch.float16, relative=2**-10, inner=INNER, reason="one rounding to 11 bits"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8, inner=INNER, reason="one rounding to 8 bits"
        ),
    ),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.append_kv.triton",
            language="triton",
            space={"num_warps": (1, 2, 4)},
            small_space={"TOKENS": (2, 4)},
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
