"""A packed weight as the tensors of compressed-tensors, and back: codes move, nothing is rounded.

    pack-quantized   weight_packed int32 [N, ceil(K b / 32)]: value + 2^(b - 1), b bits each, first
                     in the lowest bits, without holes; weight_shape int64 [2]; zero points packed
                     in the same way along the rows, int32 [ceil(N b / 32), groups]
    int-quantized    weight int8 [N, K]
    float-quantized  weight float8_e4m3 [N, K]
    mxfp4-pack-quantized
                     weight_packed uint8 [N, K / 2], the first of two codes in the lower bits;
                     scales are exponents, uint8
    nvfp4-pack-quantized
                     the same with scales in float8_e4m3 and weight_global_scale float32 [1], by
                     which they are divided

each with weight_scale [N, groups], and weight = (value - zero point) scale.
"""

from enum import StrEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.errors import CheckpointError
from tercet.formats import Granularity, PackedTensor, Scheme, from_codes
from tercet.formats.encode import effective_scale, second_level
from tercet.formats.storage.bitstream import Bitstream

BITS: dict[str, int] = {"ternary": 2, "int2": 2, "int3": 3, "nonary": 4, "int4": 4, "int8": 8}
"""Bits that hold every level of an element as a two's complement integer."""

_WORD = 4
# codes in the shortest run that fills whole bytes
_STREAMS = {b: Bitstream(b, {2: 4, 4: 2, 6: 4, 8: 1}.get(b, 8)) for b in range(2, 9)}


class Form(StrEnum):
    """How a module is stored."""

    PACKED = "pack-quantized"
    INT = "int-quantized"
    FLOAT = "float-quantized"
    MXFP4 = "mxfp4-pack-quantized"
    NVFP4 = "nvfp4-pack-quantized"


FP4_FORMS: dict[str, Form] = {"mxfp4": Form.MXFP4, "nvfp4": Form.NVFP4}
"""Forms of 4-bit floats by the names of their schemes."""
FP4_STRATEGIES = {"mxfp4": "group", "nvfp4": "tensor_group"}
"""`strategy` of their config groups."""


def pack_words(unsigned: Tensor, bits: int) -> Tensor:
    """uint8 [N, K], each below 2^bits, to int32 words [N, ceil(K bits / 32)]."""
    data = _STREAMS[bits].pack(unsigned)
    words = -(-unsigned.shape[1] * bits // 32)
    whole = pad(data, (0, max(words * _WORD - data.shape[1], 0)))
    return whole[:, : words * _WORD].contiguous().view(torch.int32)


def unpack_words(words: Tensor, bits: int, columns: int) -> Tensor:
    """int32 words [N, W] to uint8 [N, columns]."""
    stream = _STREAMS[bits]
    data = words.contiguous().view(torch.uint8)
    missing = stream.row_bytes(columns) - data.shape[1]
    return stream.unpack(pad(data, (0, max(missing, 0)))[:, : stream.row_bytes(columns)], columns)


def store(
    weight: PackedTensor, form: Form, bits: int, second: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of a packed weight, by the end of their names.

    Args:
        weight: integers of at most `bits` bits, fp8_e4m3, mxfp4 or nvfp4.
        form: how to store it.
        bits: width of an integer; BITS of the element, or more.
        second: of nvfp4, the second level to hold it under in place of its own.
    """
    scheme, codes = weight.scheme, weight.unpack()
    if form is Form.MXFP4:
        scale = weight.scale.view(torch.uint8)
        return {"weight_packed": _STREAMS[4].pack(codes), "weight_scale": scale}
    if form is Form.NVFP4:
        assert second is not None
        scale = effective_scale(weight.scale, weight.second) / second
        return {
            "weight_packed": _STREAMS[4].pack(codes),
            "weight_scale": scale.to(weight.scale.dtype),
            "weight_global_scale": (1 / second).reshape(1),
        }
    if form is Form.FLOAT:
        return {"weight": codes.view(torch.float8_e4m3fn), "weight_scale": _scale(weight, form)}
    lowest = int(scheme.element.lowest)
    if form is Form.INT:
        values = (codes.to(torch.int16) + lowest).to(torch.int8)
        return {"weight": values, "weight_scale": _scale(weight, form)}
    found = {
        "weight_packed": pack_words(codes + (2 ** (bits - 1) + lowest), bits),
        "weight_scale": _scale(weight, form),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if weight.zero is not None:
        unsigned = (weight.zero.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
        found["weight_zero_point"] = pack_words(unsigned.T.contiguous(), bits).T.contiguous()
    return found


def _scale(weight: PackedTensor, form: Form) -> Tensor:
    if weight.scheme.scaling.granularity is not Granularity.TENSOR:
        return weight.scale
    if form is Form.PACKED:
        # engines take packed integers with a scale a row or group only
        return weight.scale.expand(weight.shape[0], 1).contiguous()
    return weight.scale.reshape(1)


def values(tensors: dict[str, Tensor], bits: int) -> Tensor:
    """int16 [N, K] of an integer weight, zero points not yet subtracted."""
    if "weight_packed" not in tensors:
        return tensors["weight"].to(torch.int16)
    columns = int(tensors["weight_shape"][1])
    unsigned = unpack_words(tensors["weight_packed"], bits, columns)
    return unsigned.to(torch.int16) - 2 ** (bits - 1)


def restore(tensors: dict[str, Tensor], scheme: Scheme, bits: int, module: str) -> PackedTensor:
    """The packed weight whose `store` these tensors are.

    Raises:
        CheckpointError: a value that the scheme has no level for, or scales that it cannot hold.
    """
    if scheme.name in FP4_FORMS:
        return _restore_fp4(tensors, scheme, module)
    if not scheme.element.integer:
        codes = tensors["weight"].contiguous().view(torch.uint8)
    else:
        lowest = int(scheme.element.lowest)
        wide = values(tensors, bits) - lowest
        if wide.numel() and not 0 <= int(wide.min()) <= int(wide.max()) < len(
            scheme.element.levels
        ):
            raise CheckpointError(
                f"{module}: values from {int(wide.min()) + lowest} to {int(wide.max()) + lowest}, "
                f"{scheme.element.name} has {lowest} to {int(scheme.element.highest)}: the file is "
                f"damaged or was changed"
            )
        codes = wide.to(torch.uint8)
    shape = (codes.shape[0], codes.shape[1])
    scale = tensors["weight_scale"]
    if scheme.scaling.granularity is Granularity.TENSOR:
        scale = scale.reshape(-1, 1)[:1]
    zero = None
    if scheme.scaling.zero is not None:
        if "weight_zero_point" not in tensors:
            raise CheckpointError(f"{module}: weight_zero_point is missing: copy the files again")
        zero = _zero_points(tensors["weight_zero_point"], bits, shape[0])
    return from_codes(codes, scheme, scale.to(scheme.scaling.torch_dtype), zero)


def _zero_points(stored: Tensor, bits: int, rows: int) -> Tensor:
    """int8 [N, G]: packed into words along the rows, or, beside plain values, as they are."""
    if stored.dtype != torch.int32:
        return stored.to(torch.int8).reshape(rows, -1)
    unsigned = unpack_words(stored.T.contiguous(), bits, rows)
    return (unsigned.T.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)


def _restore_fp4(tensors: dict[str, Tensor], scheme: Scheme, module: str) -> PackedTensor:
    packed, scale = tensors["weight_packed"], tensors["weight_scale"]
    codes = _STREAMS[4].unpack(packed, 2 * packed.shape[1])
    if not scheme.scaling.second_level:
        return from_codes(codes, scheme, scale.view(scheme.scaling.torch_dtype))
    if "weight_global_scale" not in tensors:
        raise CheckpointError(f"{module}: weight_global_scale is missing: copy the files again")
    divisor = tensors["weight_global_scale"].float().reshape(())
    if not (bool(divisor.isfinite()) and float(divisor) > 0):
        raise CheckpointError(
            f"{module}: weight_global_scale {float(divisor)}: a positive number belongs there: "
            f"copy the files again"
        )
    # what was stored under the level of the layers that an engine fuses with it
    own = second_level(scale.float() / divisor, scheme)
    assert own is not None
    if float(own) == 0:
        return from_codes(codes, scheme, scale, second=own)
    moved = scale.float() / divisor / own
    stored = moved.to(scale.dtype)
    if torch.equal(stored.float(), moved):
        return from_codes(codes, scheme, stored, second=own)
    return from_codes(codes, scheme, scale, second=1 / divisor)
