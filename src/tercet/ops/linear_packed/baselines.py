"""What a user would call instead of linear_packed: torch in bf16 and fp8, Humming, GemLite.

"eager" has the packed weight's own numbers, so that its result can be compared; "uncompressed" has
normal ones, as the weight of a model before it is compressed. Their times differ where the GPU is
at its limit of power: numbers that have few values take less.

Each has a `prepare_*`, from the arguments of the reference to its own, which is not timed: weights
are packed, scaled and laid out there, and an input that a peer cannot take in the form at hand is
put into the one that it takes. Humming and GemLite get the very codes and scales of the weight,
not a quantization of their own.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import UnsupportedError
from tercet.packed_weight.peers import gemlite as peer_gemlite
from tercet.packed_weight.peers import humming as peer_humming
from tercet.packed_weight.peers.peer import dense_input, peer_of

_FP8 = torch.float8_e4m3fn
_FP8_MOST = 448.0
_ALIGNED = 16


def prepare_eager(arguments: dict[str, Any]) -> dict[str, Any]:
    """x [M, K], W [N, K], bias and residual in the dtype of the outputs."""
    x = dense_input(arguments)
    bias = arguments["bias"]
    return {
        "x": x,
        "weight": arguments["weight"].dequantize().to(x.device, x.dtype),
        "bias": None if bias is None else bias.to(x.dtype),
        "residual": arguments.get("residual"),
    }


def eager(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """torch's product with the dense weight, and the residual in a kernel of its own."""
    y = functional.linear(x, weight, bias)
    return y if residual is None else y + residual


def prepare_uncompressed(arguments: dict[str, Any]) -> dict[str, Any]:
    """As `prepare_eager`, with W [N, K] of normal numbers of the weight's mean square."""
    dense = prepare_eager(arguments)
    weight = dense["weight"]
    generator = torch.Generator(weight.device).manual_seed(0)
    drawn = torch.randn(weight.shape, generator=generator, device=weight.device)
    size = weight.float().square_().mean().sqrt_()
    return {**dense, "weight": drawn.mul_(size).to(weight.dtype)}


def prepare_fp8(arguments: dict[str, Any]) -> dict[str, Any]:
    """fp8 x with a scale for each token, fp8 W with one for each row: both rounded before."""
    x = dense_input(arguments)
    if arguments["bias"] is not None or arguments.get("residual") is not None:
        raise UnsupportedError("torch's fp8 product is timed without bias and residual")
    if x.shape[-1] % _ALIGNED or arguments["weight"].shape[0] % _ALIGNED:
        raise UnsupportedError(
            f"torch._scaled_mm takes multiples of {_ALIGNED}, W is {arguments['weight'].shape}"
        )
    codes, x_scale = _rounded(x.float())
    weight, scale = _rounded(arguments["weight"].dequantize().to(x.device))
    return {
        "x": codes,
        "x_scale": x_scale,
        "weight": weight.t(),
        "scale": scale.t(),
        "dtype": x.dtype,
    }


def fp8(x: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """cuBLASLt's or CUTLASS's fp8 product, as torch offers it; the rounding of x is not timed."""
    # (mat1, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
    found: Tensor = torch.ops.aten._scaled_mm(x, weight, x_scale, scale, None, None, dtype, True)
    return found


def prepare_humming(arguments: dict[str, Any]) -> dict[str, Any]:
    """A Humming layer with the weight's codes, and the configuration its heuristics choose for M.

    int2 to int8 weights with a scale per channel or group, and fp8; x in 16 bits, int8 or fp8.
    """
    peer = peer_of(arguments)
    layer = peer_humming.layer_of(peer)
    return {
        "layer": layer,
        "x": peer.x,
        "x_scale": None if peer.x_scale is None else peer.x_scale.reshape(-1, 1),
        "configuration": peer_humming.configuration(layer, peer.x.shape[0]),
    }


def humming(layer: Any, x: Tensor, x_scale: Tensor | None, configuration: str) -> Tensor:
    """Humming's product; where x is rounded inside, its own kernel for that too."""
    return layer(x, input_scale=x_scale, tuning_config=configuration)


def prepare_gemlite(arguments: dict[str, Any]) -> dict[str, Any]:
    """A GemLite layer with the weight's codes. It takes 16-bit x only, and may round it inside."""
    peer = peer_of(arguments)
    return {"layer": peer_gemlite.layer_of(peer), "x": peer.x}


def gemlite(layer: Any, x: Tensor) -> Tensor:
    """GemLite's product, with the kernel and the configuration that it chooses."""
    return layer(x)


def prepare_read_only(arguments: dict[str, Any]) -> dict[str, Any]:
    """As many random bytes as the weight's codes and scales take in a layout of 2, 4 or 8 bits."""
    peer = peer_of(arguments)
    size_bytes = peer.levels.numel() * peer.bits // 8
    size_bytes += peer.scale.numel() * peer.scale.element_size()
    device = peer.levels.device
    words = torch.randint(0, 1 << 30, (size_bytes // 4,), dtype=torch.int32, device=device)
    return {"words": words, "out": torch.zeros(1, dtype=torch.int32, device=device)}


def read_only(words: Tensor, out: Tensor) -> Tensor:
    """A kernel that reads the weight's bytes and does nothing: no product can be faster, cold."""
    # Imported on a GPU only: Triton needs a driver to launch anything.
    import_module("tercet.kernel.device.read_bytes").read(words, out)
    return out


def _rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3 codes and the float32 scale of each row, [rows, 1]."""
    scale = (values.abs().amax(-1, keepdim=True) / _FP8_MOST).clamp(min=1e-12)
    return (values / scale).to(_FP8), scale
