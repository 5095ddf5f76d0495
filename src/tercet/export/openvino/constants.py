"""A packed weight as OpenVINO constants: u2, u4 or u8 codes, zero points and scales.

    Reshape(Multiply(Subtract(Convert(codes), Convert(zero)), Convert(scale)))

in float32, which its plugins recognize and run on the codes. A group that does not divide K is cut
into smaller ones that do, with the scale repeated.
"""

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.export.integer_codes import BITS, pack, refusal, zero_codes
from tercet.export.target import Holding
from tercet.formats import PackedTensor

_HOLDER = "an OpenVINO constant"
_TYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int64: "i64",
    torch.int32: "i32",
}


def held(module: str, entry: PackedModule) -> Holding:
    """How a module is held there, from its scheme and shape alone."""
    reason = refusal(entry, _HOLDER, "openvino")
    if reason is not None:
        return Holding(module=module, reason=reason)
    scheme, (rows, columns) = entry.scheme, entry.shape
    bits, run = BITS[scheme.element.name], gcd(scheme.scaling.block(entry.shape)[1], columns)
    if run * bits % 8:
        # 2026.4 multiplies by wrong weights there, though it folds the constants right
        reason = (
            f"{run} of {columns} columns share a scale, {run * bits} bits: OpenVINO's kernels go "
            f"wrong where a group ends inside a byte: use a group size that is a multiple of 4 "
            f"and divides {columns}, or export to onnx"
        )
        return Holding(module=module, reason=reason)
    weights, runs = rows * columns, rows * columns // run
    size = -(-weights * bits // 8) + runs * scheme.scaling.torch_dtype.itemsize
    size += -(-runs * bits // 8) if scheme.scaling.zero else 1
    zeros = ", zero points" if scheme.scaling.zero else ""
    return Holding(
        module=module,
        kind=f"u{bits}, groups of {run}{zeros}",
        bits_per_weight=size * 8 / weights,
    )


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Makes constants.

    Attributes:
        openvino: the module `openvino`.
        ops: its operator set.
    """

    openvino: Any
    ops: Any

    def plain(self, tensor: Tensor) -> Any:
        """A tensor as a constant of its own dtype."""
        return self._bytes(tensor, _TYPES[tensor.dtype], tuple(tensor.shape))

    def float32(self, tensor: Tensor) -> Any:
        """A tensor as float32, held in its own dtype."""
        held = self.plain(tensor)
        return held if tensor.dtype == torch.float32 else self._convert(held)

    def dequantize(self, weight: PackedTensor, module: str) -> Any:
        """W [N, K] in float32 from its codes; the last node is named MODULE.weight."""
        rows, columns = weight.shape
        bits = BITS[weight.scheme.element.name]
        group = weight.scheme.scaling.block(weight.shape)[1]
        run = gcd(group, columns)
        first = torch.arange(0, columns, run) // group
        shape = (rows, columns // run, run)
        zero = torch.full((1, 1), weight.scheme.element.zero_code, dtype=torch.uint8)
        if weight.zero is not None:
            zero = zero_codes(weight.zero, weight, module, _HOLDER).expand(rows, -1)[:, first]
        scale = weight.scale.expand(rows, -1)[:, first].unsqueeze(-1)
        levels = self.ops.subtract(
            self._convert(self._codes(weight.unpack(), bits, shape)),
            self._convert(self._codes(zero, bits, (*zero.shape, 1))),
        )
        product = self.ops.multiply(levels, self.float32(scale))
        whole = self.plain(torch.tensor(weight.shape))
        return self.ops.reshape(product, whole, False, name=f"{module}.weight")

    def _codes(self, codes: Tensor, bits: int, shape: tuple[int, ...]) -> Any:
        return self._bytes(pack(codes.reshape(1, -1), bits), f"u{bits}", shape)

    def _bytes(self, tensor: Tensor, kind: str, shape: tuple[int, ...]) -> Any:
        if not prod(shape):
            raw = tensor.reshape(shape).float().numpy()
            return self.ops.constant(raw, getattr(self.openvino.Type, kind))
        made = self.openvino.Tensor(getattr(self.openvino.Type, kind), list(shape))
        made.data.reshape(-1).view("uint8")[:] = (
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        )
        return self.ops.constant(made)

    def _convert(self, value: Any) -> Any:
        return self.ops.convert(value, "f32")
