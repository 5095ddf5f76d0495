"""How calibration multiplies in float32: what is good for statistics, and what for weights."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LARGEST_HALF = 6e4
_PRECISE_COLUMNS = 4096


@contextmanager
def fast_products() -> Generator[None, None, None]:
    """Within the block, products of float32 tensors may round their inputs: to 11 bits on a GPU.

    On a CPU with AVX-512 they are oneDNN's, not MKL's, which does not use AVX-512 on AMD's
    processors: on two cores of a Zen 5 a product of 1024 tokens takes it 2.2 times as long, at the
    same error of 4e-7. torch takes oneDNN where bfloat16 is allowed. A processor with AMX would
    then round inputs to it, and 8 bits are too few: the measured divergence of one module came out
    6 % lower. There they stay MKL's.

    On a GPU they are tensor cores', in TF32.
    """
    with _precision("ieee" if _rounds_to_bfloat16() else "bf16", "tf32"):
        yield


@contextmanager
def half_products() -> Generator[None, None, None]:
    """Within the block linears and attention of float32 tensors on a GPU multiply in float16.

    They keep as many bits as in TF32, at twice the speed (see `narrow`); sums are float32. All
    calls of torch take longer to begin, so it is for what is inside a layer.
    """
    with _HalfProducts():
        yield


@contextmanager
def tensor_core_products() -> Generator[None, None, None]:
    """Within the block products of float32 tensors on a GPU round their inputs to 11 bits.

    Good for what decides how a weight is rounded: of a hundred thousand levels a few that were
    undecided come out the other way. On a CPU nothing is rounded.
    """
    with _precision("ieee", "tf32"):
        yield


@contextmanager
def exact_products() -> Generator[None, None, None]:
    """Within the block, which may lie in one of `fast_products`, no input is rounded."""
    with _precision("ieee", "ieee"):
        yield


def multiply_precisely(left: Tensor, right: Tensor) -> Tensor:
    """left [N, K] @ right [K, M], float32, with all bits of the inputs but the last one or two.

    On a GPU as three products on tensor cores, of the upper 11 bits and the rest, which take half
    as long as one of float32; on a CPU it is that one.
    """
    if left.device.type == "cpu":
        return left @ right
    product = left.new_empty(len(left), right.shape[1])
    with tensor_core_products():
        upper = upper_bits(left)
        lower = left - upper
        for first in range(0, right.shape[1], _PRECISE_COLUMNS):
            part = right[:, first : first + _PRECISE_COLUMNS]
            upper_part = upper_bits(part)
            here = product[:, first : first + _PRECISE_COLUMNS]
            # the small ones first
            torch.mm(lower, upper_part, out=here)
            here.addmm_(upper, part - upper_part).addmm_(upper, upper_part)
    return product


def upper_bits(values: Tensor) -> Tensor:
    """What tensor cores take of a float32: its upper 11 bits, cut off."""
    return (values.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A matrix as it is multiplied: values * power.

    Attributes:
        values: float16 on a GPU, the matrix itself on a CPU.
        power: a power of two, or None for one.
    """

    values: Tensor
    power: Tensor | None

    def cut(self, columns: slice) -> "Narrow":
        """Those columns."""
        return Narrow(values=self.values[:, columns], power=self.power)


def narrow(x: Tensor) -> Narrow:
    """x [M, K], float32, as fast products take it.

    On a GPU x is brought to the upper end of float16 by a power of two, so that all but what is
    2^29 times smaller than the largest keeps 11 bits, as in TF32, at twice its speed.
    """
    if x.device.type != "cuda" or not x.numel():
        return Narrow(values=x, power=None)
    largest = cast(Tensor, torch.linalg.vector_norm(x, float("inf")))
    # of what is smaller yet, the power's reciprocal would be no number
    exponent = torch.frexp(largest).exponent.clamp_min(-100)
    power = torch.ldexp(torch.ones((), dtype=torch.float32, device=x.device), exponent - 15)
    # rounded once, on the way out: x is read a second time and nothing as wide is written
    values = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    return Narrow(values=_rescale(x.contiguous(), power.reciprocal(), values), power=power)


def add_product(total: Tensor, left: Narrow, right: Narrow) -> None:
    """total [N, K] += left^T right, for left [M, N] and right [M, K]; sums are float32."""
    if left.power is None or right.power is None:
        total.addmm_(left.values.T, right.values)
        return
    found = torch.mm(left.values.T, right.values, out_dtype=torch.float32)
    total.add_(_rescale(found, left.power * right.power, found))


def _rescale(x: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    # imported here: a CPU needs none of it
    from tercet.compress.calibration.rescale_triton import rescale

    return rescale(x, factor, out)


class _HalfProducts(TorchFunctionMode):
    """Linears and attention of float32 tensors on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._input: Tensor | None = None
        self._version = 0
        self._narrowed: Narrow | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is functional.linear and _is_wide(args[0]):
            return self._multiply(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention and _is_wide(args[0]):
            return _attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _multiply(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`functional.linear`, whose names these are."""
        left, right = self._narrow_input(input), narrow(weight)
        if left.power is None or right.power is None:
            return functional.linear(input, weight, bias)
        y = torch.mm(left.values, right.values.T, out_dtype=torch.float32)
        _rescale(y, left.power * right.power, y)
        if bias is not None:
            y += bias
        return y.reshape(*input.shape[:-1], len(weight))

    def _narrow_input(self, x: Tensor) -> Narrow:
        """x, narrowed once for q, k and v, and for gate and up."""
        if self._narrowed is None or self._input is not x or self._version != x._version:
            self._input, self._version = x, x._version
            self._narrowed = None
            self._narrowed = narrow(x.reshape(-1, x.shape[-1]))
        return self._narrowed


def _rounds_to_bfloat16() -> bool:
    """Whether oneDNN, where it may, multiplies float32 tensors in AMX's bfloat16."""
    return cast(Any, torch.cpu)._is_amx_tile_supported()


def _is_wide(x: Tensor) -> bool:
    return x.device.type == "cuda" and x.dtype == torch.float32


def _attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    largest = max(
        float(cast(Tensor, torch.linalg.vector_norm(x, float("inf")))) for x in (query, key, value)
    )
    mask: Any = args[0] if args else kwargs.get("attn_mask")
    # a mask that is added would have to be narrowed too
    boolean = mask is None or mask.dtype == torch.bool
    if not (largest < _LARGEST_HALF and boolean):
        return functional.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    attend: Callable[..., Tensor] = functional.scaled_dot_product_attention
    return attend(query.half(), key.half(), value.half(), *args, **kwargs).float()


@contextmanager
def _precision(cpu: str, gpu: str) -> Generator[None, None, None]:
    settings = (cast(Any, torch.backends.mkldnn).matmul, cast(Any, torch.backends.cuda).matmul)
    before = [one.fp32_precision for one in settings]
    for one, name in zip(settings, (cpu, gpu), strict=True):
        one.fp32_precision = name
    try:
        yield
    finally:
        for one, name in zip(settings, before, strict=True):
            one.fp32_precision = name
