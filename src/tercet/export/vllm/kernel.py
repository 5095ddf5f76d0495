"""A kernel of vLLM's for weights of 2, 3, 4 and 8 bits in groups, as compressed-tensors holds them.

It needs no file of ours: vLLM reads the checkpoint, and of the kernels that can multiply it, it
takes the first. Ours comes last, after vLLM's own; only Humming, which compiles for minutes and
alone takes 2 bits on CUDA, comes after it. VLLM_DISABLED_KERNELS=MarlinLinearKernel,... puts ours
before others.
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.kernels import linear as linear_kernels
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.model_executor.parameter import permute_param_layout_
from vllm.platforms.interface import PlatformEnum

from tercet.export.vllm.packed_words import WIDTHS, packed_from_words
from tercet.export.vllm.product import FusedProduct
from tercet.models.input_transform import InputTransform

_AFTER_OURS = "HummingLinearKernel"


class TercetLinearKernel(MPLinearKernel):
    """Tercet's packed product."""

    @classmethod
    def get_min_capability(cls) -> int:
        """Of the GPU; older ones fall to the torch path."""
        return 70

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether the packed product takes such weights, else why not."""
        kind, columns = c.weight_type, c.partition_weight_shape[0]
        bias = kind.bias if kind.has_bias() else 0
        if not kind.is_integer() or kind.size_bits not in WIDTHS or kind.is_signed():
            return False, f"it takes unsigned integers of {WIDTHS} bits, not {kind}"
        if bias != (0 if c.zero_points else 1 << kind.size_bits - 1):
            return False, f"it takes integers around 2^(bits - 1) or zero points, not {kind}"
        if c.group_size > 0 and columns % c.group_size:
            return False, f"{columns} columns are no multiple of the group {c.group_size}"
        if c.act_type not in (torch.float32, torch.float16, torch.bfloat16):
            return False, f"inputs in {c.act_type}"
        return True, None

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Into the compute layout of the device."""
        columns, rows = self.config.partition_weight_shape
        words, scale, zero = self._get_weight_params(layer)
        permute_param_layout_(words, input_dim=1, output_dim=0, packed_dim=1)
        permute_param_layout_(scale, input_dim=1, output_dim=0)
        if self.config.zero_points and zero is not None:
            permute_param_layout_(zero, input_dim=1, output_dim=0, packed_dim=0)
        weight = packed_from_words(
            words.data,
            scale.data,
            zero.data if self.config.zero_points and zero is not None else None,
            self.config.weight_type.size_bits,
            columns,
        )
        layer.packed_product = FusedProduct([weight], [InputTransform()], words.device, rows)
        for name in (self.w_q_name, self.w_s_name, self.w_zp_name):
            if name is not None and getattr(layer, name, None) is not None:
                delattr(layer, name)

    def apply_weights(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        return layer.packed_product(x, bias)


def register() -> None:
    """Makes the kernel known to vLLM; harmless when repeated."""
    known: dict[Any, list[type]] = linear_kernels._POSSIBLE_KERNELS
    for platform in (PlatformEnum.CUDA, PlatformEnum.CPU):
        kernels = known.setdefault(platform, [])
        if TercetLinearKernel in kernels:
            continue
        register_linear_kernel(TercetLinearKernel, platform, "mp")
        names = [kernel.__name__ for kernel in kernels]
        if _AFTER_OURS in names:
            kernels.insert(names.index(_AFTER_OURS), kernels.pop())
