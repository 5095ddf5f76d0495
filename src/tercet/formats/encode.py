"""Encode: real weights to a PackedTensor, given their scales.

Where the scales come from is `fit`'s business (absmax, absmean, searched) or an algorithm's.
"""

import torch
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats.chunks import chunk_rows
from tercet.formats.packed import PackedTensor, expand_blocks
from tercet.formats.scheme import Scheme

_VALUES_AT_ONCE = 1 << 22
# half-way from e4m3's last number, 448, to what would be the next one
_ROUNDS_TO_LAST = 464.0


def check_weight(weight: Tensor, name: str) -> None:
    """FormatError, naming the tensor, unless it is a finite floating-point matrix [N, K]."""
    if weight.ndim != 2:
        raise FormatError(f"{name}: a weight is a matrix [N, K], got shape {list(weight.shape)}")
    if not weight.is_floating_point():
        raise FormatError(f"{name}: a weight is floating point, got {weight.dtype}")
    found = first_broken(weight)
    if found is not None:
        count, place = found
        raise FormatError(
            f"{name}: {count} of {weight.numel()} values are NaN or inf, the first at "
            f"{list(place)}: repair the source weights before compressing"
        )


def first_broken(values: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """How many values are NaN or inf, and the place of the first; None where all are numbers.

    Some values at a time: to ask a whole embedding takes more memory than the embedding.
    """
    flat = values.flatten()
    broken, first = 0, -1
    for part in chunk_rows(len(flat), _VALUES_AT_ONCE):
        wrong = flat[part].isfinite().logical_not_()
        count = int(wrong.count_nonzero())
        if count and first < 0:
            first = part.start + int(wrong.nonzero()[0])
        broken += count
    if not broken:
        return None
    place: list[int] = []
    for size in reversed(values.shape):
        first, index = divmod(first, size)
        place.insert(0, index)
    return broken, tuple(place)


def second_level(scale: Tensor, scheme: Scheme) -> Tensor | None:
    """The least power of two under which the largest scale rounds to 448 or less.

    A float32 scalar; 0 where all scales are, None without a second level. Checkpoints of other
    programs hold its reciprocal, and that of a power of two is exact.
    """
    if not scheme.scaling.second_level:
        return None
    largest = scale.max() if scale.numel() else scale.new_zeros(())
    return torch.where(largest > 0, _power_of_two(largest / _ROUNDS_TO_LAST), 0.0).float()


def _power_of_two(values: Tensor) -> Tensor:
    """The next power of two at or above each value, and at least 2^-127: float64."""
    mantissa, exponent = torch.frexp(values.double().clamp_min(2.0**-127))
    return torch.exp2((exponent - (mantissa == 0.5).to(exponent.dtype)).double())


def store_scale(scale: Tensor, scheme: Scheme, second: Tensor | None) -> Tensor:
    """Scales in the scheme's dtype; one that does not fit becomes inf or NaN."""
    if second is not None:
        scale = scale / torch.where(second > 0, second, 1.0)
    if scheme.scaling.dtype == "e8m0":
        # the next power of two at or above keeps the largest weight inside the element's range
        scale = _power_of_two(scale)
    return scale.to(scheme.scaling.torch_dtype)


def round_scale(scale: Tensor, scheme: Scheme, name: str) -> tuple[Tensor, Tensor | None]:
    """Scales [.., ..] in the scheme's dtype, and the second level where it has one.

    FormatError where a scale is negative or NaN, or does not fit the dtype, or where all of them
    round to 0, and with them every weight.
    """
    if not bool((scale >= 0).all()):
        raise FormatError(f"{name}: a scale is negative or NaN: scales are 0 or more")
    second = second_level(scale, scheme)
    stored = store_scale(scale, scheme, second)
    # a float8 cast saturates or gives NaN, depending on the version of torch: ask before it
    fits = scale.numel() == 0 or second is not None or _fits(scale, scheme)
    if not fits or not bool(stored.float().isfinite().all()):
        raise FormatError(
            f"{name}: a scale of {float(scale.max()):.3g} does not fit {scheme.scaling.dtype}: "
            f"use a scheme with float32 scales"
        )
    if scale.numel() and float(scale.max()) > 0 and not bool(stored.float().any()):
        raise FormatError(
            f"{name}: the largest scale is {float(scale.max()):.3g}, which is 0 in "
            f"{scheme.scaling.dtype}, and so would be every weight: use a scheme with bfloat16 or "
            f"float32 scales, such as int4-g64-float32"
        )
    return stored, second


def _fits(scale: Tensor, scheme: Scheme) -> bool:
    return float(scale.max()) <= torch.finfo(scheme.scaling.torch_dtype).max


def effective_scale(stored: Tensor, second: Tensor | None) -> Tensor:
    """float32 scales as decoding sees them: stored scales times the second level."""
    return stored.float() if second is None else stored.float() * second


def encode(
    weight: Tensor,
    scheme: Scheme,
    scale: Tensor,
    zero: Tensor | None = None,
    name: str = "tensor",
) -> PackedTensor:
    """Rounds every weight to the nearest level under the stored (already rounded) scales.

    Args:
        weight: [N, K], floating point, finite.
        scheme: the number format.
        scale: [ceil(N/br), ceil(K/bk)], >= 0.
        zero: like scale, in units of levels, where the scheme has zero points.
        name: what to call the tensor in an error.

    Raises:
        FormatError: weights not finite, scales of the wrong shape or not held by their dtype,
            zero points missing or not wanted, weights that the storage cannot hold.
    """
    check_weight(weight, name)
    shape = (weight.shape[0], weight.shape[1])
    check_scale_shape(scale, zero, scheme, shape, name)
    stored, second = round_scale(scale, scheme, name)
    stored_zero = round_zero(zero, scheme, name)
    divisor = divisor_of(effective_scale(stored, second))
    block = scheme.scaling.block(shape)
    levels = weight.float() / expand_blocks(divisor, block, shape)
    if stored_zero is not None:
        levels = levels + expand_blocks(stored_zero.float(), block, shape)
    return from_codes(scheme.element.encode(levels), scheme, stored, stored_zero, second)


def divisor_of(scale: Tensor) -> Tensor:
    """Scales to divide by: inf in place of 0, so that a zero scale gives level 0, never NaN.

    A product with 1 / scale would miss ties by an ulp, and overflow on subnormal scales.
    """
    return torch.where(scale > 0, scale, torch.inf)


def check_scale_shape(
    scale: Tensor, zero: Tensor | None, scheme: Scheme, shape: tuple[int, int], name: str
) -> None:
    """FormatError, naming the tensor, unless scales and zero points are one per block."""
    expected = scheme.scaling.scale_shape(shape)
    for label, part in (("scale", scale), ("zero", zero)):
        if part is not None and tuple(part.shape) != expected:
            raise FormatError(
                f"{name}: {label} has shape {list(part.shape)}, scheme {scheme.name!r} needs "
                f"{list(expected)} for a weight {list(shape)}"
            )


def round_zero(zero: Tensor | None, scheme: Scheme, name: str) -> Tensor | None:
    """Zero points in the scheme's dtype; FormatError where they are missing or not wanted."""
    dtype = scheme.scaling.zero_torch_dtype
    if (zero is None) != (dtype is None):
        raise FormatError(
            f"{name}: scheme {scheme.name!r} {'has no' if dtype is None else 'needs'} zero points"
        )
    stored = store_zero(zero, scheme)
    if stored is not None and not bool(stored.isfinite().all()):
        raise FormatError(f"{name}: a zero point is NaN, inf or too large for {dtype}")
    return stored


def store_zero(zero: Tensor | None, scheme: Scheme) -> Tensor | None:
    """Zero points in the scheme's dtype; an integer one is rounded and clamped to its range."""
    dtype = scheme.scaling.zero_torch_dtype
    if zero is None or dtype is None:
        return None
    return zero.round().clamp(-128, 127).to(dtype) if dtype == torch.int8 else zero.to(dtype)


def from_codes(
    codes: Tensor,
    scheme: Scheme,
    scale: Tensor,
    zero: Tensor | None = None,
    second: Tensor | None = None,
) -> PackedTensor:
    """Packs uint8 codes [N, K] whose scales and zero points are in the scheme's dtypes already."""
    return PackedTensor(
        codes=scheme.storage.pack(codes),
        scale=scale.contiguous(),
        zero=zero.contiguous() if zero is not None else None,
        second=second,
        scheme=scheme,
        shape=(codes.shape[0], codes.shape[1]),
    )
