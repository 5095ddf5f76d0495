"""Humming (https://pypi.org/project/humming-kernels): the experts' weights as one of its layers.

Its kernels are compiled for one shape, one weight format and a range of rows at the first call, by
nvcc.
"""

import json
import os
from importlib import import_module
from typing import Any

import torch

from tercet.errors import UnsupportedError
from tercet.ops.grouped_linear_packed.peer_weight import Peer

GROUPED = json.dumps({"gemm_type": "grouped_contiguous"})
_INPUTS = {"int8": "int8", "fp8_e4m3": "float8e4m3"}
_PACKED_TOGETHER = 32


def layer_of(peer: Peer) -> Any:
    """A HummingLayer with these codes and scales, in its own layout.

    Raises:
        UnsupportedError: for an input or a shape that it does not take.
    """
    experts, rows, columns = peer.levels.shape
    if peer.dtype not in (torch.float16, torch.bfloat16):
        raise UnsupportedError(f"Humming takes float16 and bfloat16, the call is in {peer.dtype}")
    if columns % _PACKED_TOGETHER:
        raise UnsupportedError(f"Humming packs {_PACKED_TOGETHER} columns, W has {columns}")
    integer = peer.levels.dtype == torch.int8
    layer = (
        _imported("humming.layer")
        .HummingLayer(
            shape_n=rows,
            shape_k=columns,
            weight_config={
                "dtype": f"uint{peer.bits}" if integer else "float8e4m3",
                "group_size": peer.group,
            },
            input_config={"dtype": _INPUTS[peer.activation]}
            if peer.activation in _INPUTS
            else None,
            num_experts=experts,
            has_bias=peer.bias is not None,
            torch_dtype=peer.dtype,
        )
        .to(peer.levels.device)
    )
    # integers are offset binary; those without the lowest code become sign and magnitude there
    offset = 1 << (peer.bits - 1) if integer else 0
    pack = _imported("humming.ops").pack_weight
    words = [pack((one.int() + offset).contiguous(), peer.bits) for one in peer.levels]
    tensors = {
        "weight": torch.stack(words),
        "weight_scale": peer.scale.to(peer.dtype).contiguous(),
    }
    if peer.bias is not None:
        tensors["bias"] = peer.bias.to(peer.dtype)
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


def configuration(layer: Any, rows: int) -> str:
    """What Humming's heuristics choose for so many rows of all experts together, as JSON."""
    chosen = _imported("humming.tune").get_heuristics_config(
        layer.humming_config,
        shape_m=rows,
        gemm_type="grouped_contiguous",
        device=layer.weight.device,
    )
    return json.dumps(chosen)


def _imported(name: str) -> Any:
    # nvrtc needs headers that a machine with nvcc alone may lack
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")
    return import_module(name)
