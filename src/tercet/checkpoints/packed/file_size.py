"""The size of a safetensors file before it is written: its header and its tensors, to the byte."""

from math import prod

import torch

from tercet.checkpoints.packed.layout import Layout

# safetensors writes tensors of wide dtypes first, in this order
_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ORDER = {dtype: place for place, dtype in enumerate(_NAMES)}
_ALIGNMENT = 8


def file_size_bytes(layout: Layout) -> int:
    """Bytes of the file that holds these tensors: 8, the header in JSON, padded, and the data."""
    header, end = ["{"], 0
    for name in sorted(layout, key=lambda name: (_ORDER[layout[name][0]], name)):
        dtype, shape = layout[name]
        begin, end = end, end + dtype.itemsize * prod(shape)
        sizes = ",".join(map(str, shape))
        header.append(
            f'"{name}":{{"dtype":"{_NAMES[dtype]}","shape":[{sizes}],'
            f'"data_offsets":[{begin},{end}]}}'
        )
    length = len(header[0]) + sum(map(len, header[1:])) + max(len(header) - 2, 0) + 1
    return _ALIGNMENT + -(-length // _ALIGNMENT) * _ALIGNMENT + end
