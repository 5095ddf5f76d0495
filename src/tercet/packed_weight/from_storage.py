"""Storage form to rows16 in C++: a packed weight in the time that memory takes.

The definition is torch's: `rows16.pack_codes` of `Storage.unpack`, at 8 bytes a code, and
`rows16.pack_scale`. This gives their bits, and checks on the way what `validate_values` checks. A
storage's unit is cut into words of at most 16 bits (`Storage.words_per_unit`), and a table, made
by the storage itself, holds what each word is in rows16.
"""

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.errors import BuildError
from tercet.formats import Element, PackedTensor
from tercet.formats.dispatch_mode import in_dispatch_mode
from tercet.formats.storage import Storage
from tercet.formats.storage.unit import LONGEST_WORD_BITS, number_to_digits
from tercet.kernel.jit.cpp import build as build_library
from tercet.packed_weight.rows16 import Layout

_SOURCE = Path(__file__).with_suffix(".cpp")
_P, _I32, _I64, _U32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32
LARGEST_FLOAT16 = 4096.0  # of a scale: codes of up to 4 bits times it are float16 then
_EXACT_IN: dict[torch.dtype, torch.dtype] = {
    torch.float8_e8m0fnu: torch.bfloat16,
    torch.float8_e4m3fn: torch.float16,
    torch.int8: torch.float16,
}
# the bits of exponent and of sign
_MASKS: dict[torch.dtype, tuple[int, int]] = {
    torch.float32: (0x7F800000, 0x80000000),
    torch.float16: (0x7C00, 0x8000),
    torch.bfloat16: (0x7F80, 0x8000),
}


class Form(ctypes.Structure):
    """Mirrors `struct Form` of from_storage.cpp, field by field."""

    _fields_ = (
        ("rows", _I64),
        ("columns", _I64),
        ("group", _I64),
        ("groups", _I64),
        ("runs_per_group", _I64),
        ("row_bytes", _I64),
        ("bits", _I32),
        ("word_bits", _I32),
        ("word_codes", _I32),
        ("flip", _U32),
        ("packed", _P),
        ("refused", _P),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Words:
    """How a storage's words become codes of rows16.

    Attributes:
        bits: of a stored word; 32 where the stored bits are those of rows16, up to `flip`.
        codes: of a stored word.
        flip: what such a word of 32 bits is xored with.
        packed: int32 [2 ** bits], each word's codes side by side; empty for words of 32 bits.
        refused: uint8 [2 ** bits], 1 for words with a code that may not occur; empty likewise.
    """

    bits: int
    codes: int
    flip: int
    packed: Tensor
    refused: Tensor


class Scales(ctypes.Structure):
    """Mirrors `struct Scales` of from_storage.cpp, field by field."""

    _fields_ = (
        ("rows", _I64),
        ("groups", _I64),
        ("row_block", _I64),
        ("number_bytes", _I32),
        ("exponent", _U32),
        ("sign", _U32),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """What a PreparedWeight is made of: codes, scale and zero in a compute layout."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None


def convert(packed: PackedTensor, layout: Layout) -> Tensors | None:
    """The weight in rows16, bit for bit as torch packs it, on the CPU.

    Args:
        packed: has passed `PackedTensor.validate_shapes`.
        layout: of its scheme and shape.

    Returns:
        None where C++ does not apply (no compiler, tensors elsewhere, a storage of longer words) or
        a value occurs that may not, for `validate_values` to name.
    """
    device = packed.codes.device
    if device.type != "cpu" or in_dispatch_mode() or not packed.codes.numel():
        return None
    library, second = _library(), packed.second
    if library is None or (second is not None and not 0 <= float(second) < torch.inf):
        return None
    codes = _convert_codes(library, packed, layout)
    scale = _convert_scale(library, widen_scale(packed, device), packed, layout, signed=False)
    zero = widen_zero(packed, device)
    made = None
    if zero is not None:
        made = _convert_scale(library, zero, packed, layout, signed=True)
    if codes is None or scale is None or (made is None) != (zero is None):
        return None
    return Tensors(codes=codes, scale=scale, zero=made)


def widen_scale(packed: PackedTensor, device: torch.device) -> Tensor:
    """The scales, at least 16 bits wide, on the device; a second level is folded in.

    float16 ones are at most LARGEST_FLOAT16, so that kernels may multiply codes by them: larger
    ones become float32.
    """
    scale = packed.scale.to(device)
    scale = scale.to(_EXACT_IN.get(scale.dtype, scale.dtype))
    if packed.second is not None:
        return scale.float() * packed.second.to(device)
    known = scale.numel() and not scale.is_meta and not in_dispatch_mode()
    large = scale.dtype == torch.float16 and known and bool(scale.amax() > LARGEST_FLOAT16)
    return scale.float() if large else scale


def widen_zero(packed: PackedTensor, device: torch.device) -> Tensor | None:
    """The zero points, at least 16 bits wide, on the device."""
    if packed.zero is None:
        return None
    zero = packed.zero.to(device)
    return zero.to(_EXACT_IN.get(zero.dtype, zero.dtype))


def _convert_codes(library: ctypes.CDLL, packed: PackedTensor, layout: Layout) -> Tensor | None:
    words = _words(packed.scheme.storage, layout.element, layout.bits)
    if words is None:
        return None
    stored = packed.codes.contiguous()
    form = Form(
        rows=layout.rows,
        columns=layout.columns,
        group=layout.group,
        groups=layout.groups,
        runs_per_group=layout.runs_per_group,
        row_bytes=stored.shape[1],
        bits=layout.bits,
        word_bits=words.bits,
        word_codes=words.codes,
        flip=words.flip,
        packed=words.packed.data_ptr(),
        refused=words.refused.data_ptr(),
    )
    codes = torch.empty(layout.codes_shape, dtype=torch.int32)
    refused = library.tercet_convert_storage(
        ctypes.byref(form), stored.data_ptr(), codes.data_ptr(), torch.get_num_threads()
    )
    return None if refused else codes


def _convert_scale(
    library: ctypes.CDLL, scale: Tensor, packed: PackedTensor, layout: Layout, *, signed: bool
) -> Tensor | None:
    exponent, sign = _MASKS[scale.dtype]
    form = Scales(
        rows=layout.rows,
        groups=layout.groups,
        row_block=packed.scheme.scaling.block(packed.shape)[0],
        number_bytes=scale.element_size(),
        exponent=exponent,
        sign=0 if signed else sign,
    )
    scale = scale.contiguous()
    made = torch.empty(layout.scale_shape, dtype=scale.dtype)
    refused = library.tercet_convert_scale(
        ctypes.byref(form), scale.data_ptr(), made.data_ptr(), torch.get_num_threads()
    )
    return None if refused else made


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        library = build_library(_SOURCE)
    except BuildError:
        return None
    for native in (library.tercet_convert_storage, library.tercet_convert_scale):
        native.argtypes = (_P, _P, _P, _I32)
        native.restype = _I32
    return library


@cache
def _words(storage: Storage, element: Element, bits: int) -> Words | None:
    """None where a word would be longer than a table can be."""
    length = 8 * storage.unit_bytes // storage.words_per_unit
    if length > LONGEST_WORD_BITS:
        return None
    # under inference mode the cached tables would be of no use outside of it
    with torch.inference_mode(mode=False):
        units = _repeat_words(storage, length)
        broken = ~storage.valid_units(units)
        # unpacking takes valid units only: 0 stands in for those that are none
        codes = storage.unpack_units(units.masked_fill(broken[:, None], 0))
        codes = codes[:, : storage.unit_codes // storage.words_per_unit]
        refused = broken | _refuse_codes(codes, element).any(dim=1)
        signed = element.integer and bits == 8
        # where every byte is a level, its sign is all that changes
        flip = 128 if signed and element.lowest == -128 else 0
        shifts = bits * torch.arange(codes.shape[1])
        stored = (codes.long() + (int(element.lowest) if signed else 0)) & (2**bits - 1)
        packed = (stored << shifts).sum(dim=1).to(torch.int32)
    count = codes.shape[1]
    plain = torch.equal(packed.long(), torch.arange(2**length) ^ flip)
    if plain and count * bits == length and not bool(refused.any()):
        none = torch.empty(0)
        return Words(bits=32, codes=32 // bits, flip=flip * 0x01010101, packed=none, refused=none)
    return Words(bits=length, codes=count, flip=0, packed=packed, refused=refused.to(torch.uint8))


def _repeat_words(storage: Storage, length: int) -> Tensor:
    """uint8 [2 ** length, unit_bytes]: for each word, the unit that consists of it alone."""
    words = torch.arange(2**length)
    unit = sum(words << (length * i) for i in range(storage.words_per_unit))
    assert isinstance(unit, Tensor)
    return number_to_digits(unit, 256, storage.unit_bytes)


def _refuse_codes(codes: Tensor, element: Element) -> Tensor:
    """bool like codes: whether each is no level of the element, or one that is not a number."""
    levels = torch.full((256,), torch.nan, dtype=torch.float32)
    levels[: len(element.levels)] = element.table()
    return levels[codes.long()].isnan()
