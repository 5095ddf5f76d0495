"""GemLite (https://pypi.org/project/gemlite): a weight of ours as one of its layers.

Its Triton kernels are tuned at the first call of a shape that its tables lack, which takes up to a
minute; it has no table of an H200, which gets the H100's.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.packed_weight.peers.peer import Peer

_SHIFT_ONLY = 1
_WEIGHT_SCALE, _BOTH_SCALES = 1, 3


def layer_of(peer: Peer) -> Any:
    """A GemLite layer with these codes and scales.

    Raises:
        UnsupportedError: for what it does not take: codes as input, 8-bit products of groups,
            fp8 products of integers.
    """
    if peer.x_scale is not None:
        raise UnsupportedError("GemLite rounds 16-bit inputs itself: it takes no codes")
    rounded, integer = peer.activation != "none", peer.levels.dtype == torch.int8
    if (peer.group and (rounded or peer.bits == 8)) or (
        rounded and (peer.activation == "int8") != integer
    ):
        raise UnsupportedError(
            f"GemLite has no product of x in {peer.activation} with {peer.bits}-bit "
            f"{'integers' if integer else 'floats'} in groups of {peer.group or 'a row'}"
        )
    helper = import_module("gemlite.helper")
    _tables()
    if peer.bits == 8:
        name = f"A{8 if rounded else 16}W8_{'INT8' if integer else 'FP8'}"
        made = getattr(helper, f"{name}_dynamic" if rounded else name)(dtype=peer.dtype)
        weight = peer.levels if integer else peer.levels.view(torch.float8_e4m3fn)
        return made.from_weights(weight, bias=peer.bias, scales=peer.scale.float())
    return _packed(peer, rounded)


def _packed(peer: Peer, rounded: bool) -> Any:
    """2 or 4 bits: unsigned codes and a zero point, one number for a channel's scale."""
    dtypes, core = import_module("gemlite.dtypes"), import_module("gemlite.core")
    rows, columns = peer.levels.shape
    zero = 1 << (peer.bits - 1)
    codes = (peer.levels + zero).to(torch.uint8)
    dtype = dtypes.TORCH_TO_DTYPE[peer.dtype]
    layer = core.GemLiteLinear(
        peer.bits,
        group_size=peer.group or columns,
        in_features=columns,
        out_features=rows,
        input_dtype=dtypes.DType.INT8 if rounded else dtype,
        output_dtype=dtype,
        scaled_activations=rounded,
    )
    scale: Tensor = peer.scale.to(peer.dtype) if peer.group else peer.scale.float()
    zeros = torch.full_like(scale, zero) if peer.group else zero
    layer.pack(codes, scale, zeros, bias=peer.bias)
    if not peer.group:
        layer.W_group_mode = _SHIFT_ONLY
        layer.channel_scale_mode = _BOTH_SCALES if rounded else _WEIGHT_SCALE
    return layer


@cache
def _tables() -> None:
    """Its table of this GPU, or of the one that is most like it."""
    core: Any = import_module("gemlite.core")
    if core.selected_tag is None and "H200" in torch.cuda.get_device_name():
        core.GemLiteLinear.load_config(str(Path(core.__file__).parent / "configs" / "h100.json"))
