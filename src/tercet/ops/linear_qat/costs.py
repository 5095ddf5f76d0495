"""What a call of linear_qat must do at least: operations, and bytes moved."""

from collections.abc import Mapping
from typing import Any

from tercet.kernel.contract import Cost


def _sizes(arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    x, codes = arguments["x"], arguments["codes"]
    return x.shape[:-1].numel(), codes.shape[0], codes.shape[1]


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x (or its codes), codes, scale, bias read once; y (and x's codes and scales) written once."""
    m, n, k = _sizes(arguments)
    x, coded = arguments["x"], arguments["x_codes"] is not None
    small = [arguments[name] for name in ("scale", "bias")]
    return Cost(
        flops=2 * m * n * k,
        bytes_read=n * k
        + (m * (k + 4) if coded else m * k * x.element_size())
        + sum(part.numel() * part.element_size() for part in small if part is not None),
        bytes_written=m * n * arguments["out_dtype"].itemsize + (0 if coded else m * (k + 4)),
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad, codes, x's codes, scales read once; grad_x, grad_weight, grad_bias written once."""
    m, n, k = _sizes(arguments)
    weight, bias = arguments["weight"], arguments["bias"]
    weights = 0 if weight is None else n * k * weight.element_size()
    products = 1 if weight is None else 2
    return Cost(
        flops=2 * products * m * n * k,
        bytes_read=m * n * arguments["out_dtype"].itemsize
        + n * k
        + (products - 1) * m * (k + 4)
        + 4 * arguments["scale"].numel(),
        bytes_written=m * k * arguments["x"].element_size()
        + weights
        + (0 if bias is None else n * bias.element_size()),
    )
