"""Humming (https://pypi.org/project/humming-kernels): a weight of ours, or those of all experts, as
one of its layers.

Its kernels are compiled for one shape, one weight format and a range of M at the first call, by
nvcc; `compile_ahead` compiles those of many calls at once, on all cores.
"""

import json
import os
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.packed_weight.peers.peer import Peer

_INPUTS = {"int8": "int8", "fp8_e4m3": "float8e4m3"}
_PACKED_TOGETHER = 32


def layer_of(peer: Peer) -> Any:
    """A HummingLayer with these codes and scales, in its own layout.

    Raises:
        UnsupportedError: for an input or a shape that it does not take.
    """
    *experts, rows, columns = peer.levels.shape
    if peer.dtype not in (torch.float16, torch.bfloat16):
        raise UnsupportedError(f"Humming takes float16 and bfloat16, the call is in {peer.dtype}")
    if columns % _PACKED_TOGETHER:
        raise UnsupportedError(f"Humming packs {_PACKED_TOGETHER} columns, W has {columns}")
    module = _imported("humming.layer")
    integer = peer.levels.dtype == torch.int8
    layer = module.HummingLayer(
        shape_n=rows,
        shape_k=columns,
        weight_config={
            "dtype": f"uint{peer.bits}" if integer else "float8e4m3",
            "group_size": peer.group,
        },
        input_config={"dtype": _INPUTS[peer.activation]} if peer.activation in _INPUTS else None,
        has_bias=peer.bias is not None,
        torch_dtype=peer.dtype,
        **({"num_experts": experts[0]} if experts else {}),
    ).to(peer.levels.device)
    # integers are offset binary; those without the lowest code become sign and magnitude there,
    # which for two bits is its ternary format float2e0m1
    offset = 1 << (peer.bits - 1) if integer else 0
    pack = _imported("humming.ops").pack_weight

    def words(levels: Tensor) -> Tensor:
        return pack((levels.int() + offset).contiguous(), peer.bits)

    tensors = {
        "weight": torch.stack([words(one) for one in peer.levels])
        if experts
        else words(peer.levels),
        "weight_scale": peer.scale.to(peer.dtype).contiguous(),
    }
    if peer.bias is not None:
        tensors["bias"] = peer.bias.to(peer.dtype)
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


def configuration(layer: Any, rows: int, **kind: str) -> str:
    """What Humming's heuristics choose for M = rows (of all experts together), as JSON."""
    chosen = _imported("humming.tune").get_heuristics_config(
        layer.humming_config, shape_m=rows, device=layer.weight.device, **kind
    )
    return json.dumps(chosen)


def compile_ahead(calls: Iterable[tuple[Any, str]], **kind: str) -> int:
    """Compiles the kernels of these layers and configurations, all at once; how many there are.

    `kind` is that of `configuration`.
    """
    kernel = _imported("humming.kernel.humming").HummingKernel
    computing = json.dumps(kind) if kind else None
    specs: dict[str, tuple[Any, dict[str, Any]]] = {}
    for layer, chosen in calls:
        config, compute, tuning = kernel._resolve_configs(
            layer.humming_config.to_str(), computing, chosen, layer.weight.device
        )
        known = {**config, **compute, **tuning}
        known.pop("num_sms", None)
        specs[json.dumps(known, sort_keys=True, default=str)] = (kernel, known)
    kernel.compile_many(specs.values())
    return len(specs)


def _imported(name: str) -> Any:
    # nvrtc needs headers that a machine with nvcc alone may lack
    os.environ.setdefault("HUMMING_COMPILER", "nvcc")
    return import_module(name)
