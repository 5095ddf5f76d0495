"""BoundProduct: a packed product on a CPU for C++ to call, all but its input and output given.

From Python a product takes some 40 us beside its work, which is more than the work of most of a
small model's layers.
"""

import ctypes

from torch import Tensor

from tercet import environment
from tercet.errors import BuildError
from tercet.packed_weight.cpu.native import NUMBERS, native_layout
from tercet.packed_weight.cpu.product import isa_number, library
from tercet.packed_weight.weight import PreparedWeight

_P, _I32 = ctypes.c_void_p, ctypes.c_int32


class BoundProduct(ctypes.Structure):
    """Mirrors `struct BoundProduct` of cpu/bound_product.hpp, field by field."""

    _fields_ = (
        ("product", _P),
        ("layout", _P),
        ("codes", _P),
        ("scale", _P),
        ("zero", _P),
        ("bias", _P),
        ("scale_number", _I32),
        ("zero_number", _I32),
        ("bias_number", _I32),
        ("isa", _I32),
    )


def bind(weight: PreparedWeight, bias: Tensor | None) -> BoundProduct | None:
    """The product with this weight; the caller keeps both tensors alive.

    None where the C++ product does not apply: no compiler, or another layout than rows16.
    """
    if weight.layout != "rows16" or (bias is not None and not bias.is_contiguous()):
        return None
    try:
        native = library().tercet_packed_product
    except BuildError:
        return None
    zero = weight.zero
    return BoundProduct(
        product=ctypes.cast(native, _P),
        layout=native_layout(weight.scheme, *weight.shape)[0],
        codes=weight.codes.data_ptr(),
        scale=weight.scale.data_ptr(),
        zero=None if zero is None else zero.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        scale_number=NUMBERS[weight.scale.dtype],
        zero_number=0 if zero is None else NUMBERS[zero.dtype],
        bias_number=0 if bias is None else NUMBERS[bias.dtype],
        isa=isa_number(environment.cpu_isa()),
    )
