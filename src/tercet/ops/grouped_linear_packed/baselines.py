"""What a user would call in place of grouped_linear_packed: torch's product, a loop, Humming.

Each has a `prepare_*`, from the arguments of the reference to its own, which is not timed: weights
are packed, scaled and laid out there, and where rows begin is read there by those that ask the
host. Humming gets the very codes and scales of the weights, not a quantization of its own.
"""

import json
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import UnsupportedError
from tercet.packed_weight.peers import humming as peer_humming
from tercet.packed_weight.peers.peer import dense_input, output_dtype, peer_of
from tercet.packed_weight.weight import prepare

Segments = list[tuple[int, int, int]]
GROUPED = {"gemm_type": "grouped_contiguous"}


def prepare_eager(arguments: dict[str, Any]) -> dict[str, Any]:
    """x [T, K], W [E, N, K] and bias [E, N] in the dtype of the outputs; where rows begin."""
    x, bias = dense_input(arguments), arguments["bias"]
    dense = [each.dequantize().to(x.device, x.dtype) for each in arguments["weight"]]
    return {
        "x": x,
        "weight": torch.stack(dense),
        "offsets": arguments["offsets"],
        "segments": _segments(arguments["offsets"]),
        "bias": None if bias is None else bias.to(x.dtype),
        "row_weight": arguments.get("row_weight"),
    }


def eager(
    x: Tensor,
    weight: Tensor,
    offsets: Tensor,
    segments: Segments,
    bias: Tensor | None,
    row_weight: Tensor | None,
) -> Tensor:
    """torch._grouped_mm where it has a kernel (bfloat16 on a GPU), else a loop of products."""
    if x.is_cuda and x.dtype == torch.bfloat16 and bias is None:
        found: Tensor = torch.ops.aten._grouped_mm(x, weight.transpose(1, 2), offsets[1:])
    else:
        shared = [None] * len(weight) if bias is None else list(bias)
        pieces = [functional.linear(x[a:b], weight[e], shared[e]) for e, a, b in segments]
        found = torch.cat(pieces) if pieces else x.new_zeros((0, weight.shape[1]))
    return found if row_weight is None else (found * row_weight[:, None]).to(found.dtype)


def prepare_loop(arguments: dict[str, Any]) -> dict[str, Any]:
    """x, and the packed weight of each expert that has rows, with those rows."""
    x, segments = arguments["x"], _segments(arguments["offsets"])
    return {
        "x": x,
        "weights": [prepare(arguments["weight"][e], x.device) for e, _, _ in segments],
        "segments": segments,
        "rows": arguments["weight"][0].shape[0],
        "dtype": output_dtype(arguments),
        **{name: arguments.get(name) for name in ("bias", "row_weight", "x_scale")},
        "activation": arguments.get("activation", "none"),
    }


def loop(
    x: Tensor,
    weights: list[Any],
    segments: Segments,
    rows: int,
    dtype: torch.dtype,
    bias: Tensor | None,
    row_weight: Tensor | None,
    x_scale: Tensor | None,
    activation: str,
) -> Tensor:
    """linear_packed once for each expert that has rows, known to the host; then the row weights."""
    linear_packed = import_module("tercet.ops.linear_packed").linear_packed
    y = torch.empty((len(x), rows), dtype=dtype, device=x.device)
    for weight, (expert, first, last) in zip(weights, segments, strict=True):
        y[first:last] = linear_packed(
            x[first:last],
            weight,
            None if bias is None else bias[expert],
            x_scale=None if x_scale is None else x_scale[first:last],
            activation=activation,
            out_dtype=dtype,
        )
    return y if row_weight is None else y.mul_(row_weight[:, None])


def prepare_humming(arguments: dict[str, Any]) -> dict[str, Any]:
    """A Humming layer of all experts, and the configuration its heuristics choose for T rows."""
    if arguments.get("row_weight") is not None:
        raise UnsupportedError("Humming multiplies no row weights in: it is timed without")
    peer = peer_of(arguments)
    layer = peer_humming.layer_of(peer)
    return {
        "layer": layer,
        "x": peer.x,
        "x_scale": None if peer.x_scale is None else peer.x_scale.reshape(-1, 1),
        "offsets": arguments["offsets"],
        "configuration": peer_humming.configuration(layer, len(peer.x), **GROUPED),
    }


def humming(
    layer: Any, x: Tensor, x_scale: Tensor | None, offsets: Tensor, configuration: str
) -> Tensor:
    """Humming's grouped product of rows sorted by expert ("grouped_contiguous")."""
    return layer(
        x,
        input_scale=x_scale,
        expert_layout=offsets,
        compute_config=json.dumps(GROUPED),
        tuning_config=configuration,
    )


def prepare_read_only(arguments: dict[str, Any]) -> dict[str, Any]:
    """As many random bytes as codes and scales of the experts that have rows take."""
    peer, used = peer_of(arguments), len(_segments(arguments["offsets"]))
    each = peer.levels[0].numel() * peer.bits // 8
    each += peer.scale[0].numel() * peer.scale.element_size()
    device = peer.x.device
    words = torch.randint(0, 1 << 30, (used * each // 4,), dtype=torch.int32, device=device)
    return {"words": words, "out": torch.zeros(1, dtype=torch.int32, device=device)}


def read_only(words: Tensor, out: Tensor) -> Tensor:
    """A kernel that reads these bytes and does nothing: no product can be faster, cold."""
    # Imported on a GPU only: Triton needs a driver to launch anything.
    import_module("tercet.kernel.device.read_bytes").read(words, out)
    return out


def _segments(offsets: Tensor) -> Segments:
    """(expert, first row, end) of the experts that have rows."""
    bounds = cast(list[int], offsets.tolist())
    return [(expert, a, b) for expert, (a, b) in enumerate(pairwise(bounds)) if a < b]
