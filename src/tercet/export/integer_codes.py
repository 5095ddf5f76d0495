"""Integer codes of 2, 4 and 8 bits with whole zero points, as ONNX Runtime and OpenVINO hold them.

W[i, j] = (code[i, j] - zero_code[i // br, j // bk]) * scale[i // br, j // bk]
"""

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import UnsupportedError
from tercet.export.target import transform_reason
from tercet.formats import Granularity, PackedTensor
from tercet.formats.storage.bitstream import Bitstream

BITS = {"ternary": 2, "int2": 2, "int3": 4, "nonary": 4, "int4": 4, "int5": 8, "int6": 8, "int8": 8}
_STORAGES = {width: Bitstream(width, 8 // width) for width in (2, 4, 8)}
_SCALE_DTYPES = ("float16", "bfloat16", "float32")
_INSTEAD = {
    "fp8_e4m3": "use int8",
    "fp8_e5m2": "use int8",
    "fp4_e2m1": "use int4 or nonary",
}


def refusal(entry: PackedModule, holder: str, target: str) -> str | None:
    """Why this module has no such codes; None where it has.

    Args:
        entry: the module.
        holder: what holds the codes there, in a message: "MatMulNBits".
        target: name of the target.
    """
    scheme = entry.scheme
    name, scaling = scheme.element.name, scheme.scaling
    if name not in BITS:
        return f"{name}: {holder} holds integers of 2, 4 and 8 bits here: {_INSTEAD[name]}"
    if scheme.storage.name.startswith("sparse"):
        return (
            f"sparse storage {scheme.storage.name!r}: {holder} has no sparsity, the file would "
            f"grow to 2 bits a weight: compress to ternary, which keeps more weights in those bits"
        )
    if scaling.granularity is Granularity.BLOCK:
        return (
            f"scales for blocks of {scaling.block_rows} rows: {holder} has scales along a row "
            f"only: use groups (g64) or channel"
        )
    if scaling.zero not in (None, "int8"):
        return f"zero points in {scaling.zero}: {holder} takes whole ones here: use asym"
    if scaling.dtype not in _SCALE_DTYPES or scaling.second_level:
        kind = "two levels" if scaling.second_level else scaling.dtype
        return f"scales in {kind}: {holder} takes {', '.join(_SCALE_DTYPES)} here: use one of those"
    return transform_reason(entry, target)


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [N, K] to bytes [N, ceil(K * bits / 8)], the first code in the lowest bits."""
    return _STORAGES[bits].pack(codes)


def zero_codes(zero: Tensor, weight: PackedTensor, module: str, holder: str) -> Tensor:
    """The code that stands for 0, uint8 of zero's shape.

    Raises:
        UnsupportedError: a zero point lies outside of the codes.
    """
    element = weight.scheme.element
    points = zero.to(torch.int16) + element.zero_code
    if bool((points < 0).any()) or bool((points >= 1 << BITS[element.name]).any()):
        raise UnsupportedError(
            f"{module}: zero points from {int(zero.min())} to {int(zero.max())}, {holder} holds "
            f"those from {element.lowest:.0f} to {element.highest:.0f}: compress with a symmetric "
            f"format"
        )
    return points.to(torch.uint8)
