"""PreparedWeight: a packed weight in its compute layout, made once at load."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from tercet.errors import UnsupportedError, unknown_name
from tercet.formats import PackedTensor
from tercet.formats.chunks import chunk_rows
from tercet.packed_weight import fragments, from_storage, rows16
from tercet.packed_weight.from_storage import Tensors, widen_scale, widen_zero
from tercet.packed_weight.rows16 import (
    LANES,
    ROWS_AT_ONCE,
    Layout,
    layout_of,
    pack_scale,
    unpack_scale,
)

LayoutName = Literal["rows16", "fragments"]
Parts = tuple[Tensor, Tensor, Tensor | None, str, int, int, LayoutName]

# of `PreparedWeight.parts` in the schema of a torch.library op
SCHEMA = (
    "Tensor codes, Tensor scale, Tensor? zero, str scheme, SymInt rows, SymInt columns, str layout"
)
PART_NAMES = ("codes", "scale", "zero", "scheme", "rows", "columns", "layout")
# the codes' last axes: of 16 rows' dwords, or of a warp's 16-byte loads
_LAST_AXES: dict[str, tuple[int, ...]] = {"rows16": (LANES,), "fragments": (32, 4)}


@dataclass(frozen=True, kw_only=True)
class PreparedWeight:
    """W [N, K] in a compute layout, still packed: rows16 on CPUs, fragments on CUDA devices.

    Attributes:
        codes: int32; rows16 [ceil(N / 16), runs, 16] (tercet/packed_weight/rows16.py), or fragments
            [ceil(N / 16), units, 32, 4] (tercet/packed_weight/fragments.py).
        scale: float32, float16 or bfloat16 [ceil(N / 16), groups, 16]; a second level is folded in,
            and float16 ones are at most 4096: larger ones are float32.
        zero: None, or like scale.
        scheme: name of the scheme it was packed in.
        shape: (N, K).
        layout: "rows16" or "fragments".

    Raises:
        UnsupportedError: where the codes do not have the shape of that layout.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    scheme: str
    shape: tuple[int, int]
    layout: LayoutName

    def __post_init__(self) -> None:
        validate_layout(self.codes, self.layout)

    @classmethod
    def from_parts(
        cls,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
        layout: LayoutName,
    ) -> "PreparedWeight":
        """The weight of a torch.library op's flat arguments, in the order of SCHEMA."""
        return cls(
            codes=codes,
            scale=scale,
            zero=zero,
            scheme=scheme,
            shape=(rows, columns),
            layout=layout,
        )

    @property
    def parts(self) -> Parts:
        """The weight as flat arguments of a torch.library op, in the order of SCHEMA."""
        return (self.codes, self.scale, self.zero, self.scheme, *self.shape, self.layout)

    @property
    def sizes(self) -> Layout:
        """Sizes of the blocks, groups and codes."""
        return layout_of(self.scheme, *self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors, padding counted."""
        parts = (self.codes, self.scale, self.zero)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def to(self, device: torch.device | str) -> "PreparedWeight":
        """The same weight on another device, in the layout of that device.

        Layouts are changed on the CUDA device, where it takes milliseconds.
        """
        wanted = _layout_on(torch.device(device)) or self.layout
        moved = self if wanted == "fragments" else self.to_layout(wanted)
        moved = replace(
            moved,
            codes=moved.codes.to(device),
            scale=moved.scale.to(device),
            zero=moved.zero.to(device) if moved.zero is not None else None,
        )
        return moved.to_layout(wanted)

    def to_layout(self, layout: LayoutName) -> "PreparedWeight":
        """The same weight in the layout of that name, on its device; nothing is lost.

        In chunks of 1024 rows, each widened to 8 bytes a code.
        """
        if layout == self.layout:
            return self
        sizes, packs = self.sizes, list[Tensor]()
        for blocks in chunk_rows(sizes.blocks, ROWS_AT_ONCE // LANES):
            rows = min(blocks.stop * LANES, sizes.rows) - blocks.start * LANES
            part = replace(sizes, rows=rows)
            stored = _unpack(self.codes[blocks], self.layout, part)[:rows]
            packs.append(_pack(_to_format_codes(stored, self.layout, part), layout, part))
        codes = torch.cat(packs) if packs else _pack(_no_codes(self), layout, sizes)
        return replace(self, codes=codes, layout=layout)


def name_parts(parts: Parts) -> dict[str, Any]:
    """A weight's flat arguments of a torch.library op by name."""
    return dict(zip(PART_NAMES, parts, strict=True))


def validate_layout(codes: Tensor, layout: str) -> None:
    """UnsupportedError unless the codes have the shape of the layout of that name."""
    expected = _LAST_AXES.get(layout)
    if expected is None:
        raise UnsupportedError(unknown_name("layout", layout, _LAST_AXES))
    if codes.shape[2:] != expected:
        raise UnsupportedError(
            f"codes are {list(codes.shape)}: in the layout {layout!r} they are "
            f"[blocks, along K, {', '.join(map(str, expected))}]"
        )


def prepare(
    packed: PackedTensor, device: torch.device | str = "cpu", name: str = "tensor"
) -> PreparedWeight:
    """The weight in the compute layout of the device, there. 8-bit scales become 16 bits wide.

    Args:
        packed: on any device.
        device: a CUDA device packs fragments itself, from codes moved there as they are stored.
        name: the weight's in errors.

    Raises:
        FormatError: where the packed tensor breaks one of its invariants.
    """
    packed.validate_shapes(name)
    layout, target = layout_of(packed.scheme.name, *packed.shape), torch.device(device)
    # C++ checks all values on the way; what it refuses, or cannot do, torch does at length
    made = from_storage.convert(packed, layout) if target.type == "cpu" else None
    if made is None:
        packed.validate_values(name)
        made = _pack_in_torch(packed, layout, target)
    return PreparedWeight(
        codes=made.codes,
        scale=made.scale,
        zero=made.zero,
        scheme=packed.scheme.name,
        shape=packed.shape,
        layout=_layout_to_pack(target),
    )


def _pack_in_torch(packed: PackedTensor, layout: Layout, device: torch.device) -> Tensors:
    """Codes, scales and zero points in the layout of the device, there: the definition."""
    scale, zero = widen_scale(packed, device), widen_zero(packed, device)
    return Tensors(
        codes=_pack_stored(packed, layout, device),
        scale=pack_scale(_per_row(scale, packed), layout),
        zero=None if zero is None else pack_scale(_per_row(zero, packed), layout),
    )


def _layout_on(device: torch.device) -> LayoutName | None:
    """The layout that kernels of a device take; None where there are no kernels (meta)."""
    return {"cuda": "fragments", "cpu": "rows16"}.get(device.type)  # pyright: ignore[reportReturnType]


def _layout_to_pack(device: torch.device) -> LayoutName:
    return _layout_on(device) or "rows16"


def _pack_stored(packed: PackedTensor, layout: Layout, device: torch.device) -> Tensor:
    """Codes in the device's layout, from storage form, some rows at a time."""
    name, stored, columns = _layout_to_pack(device), packed.codes.to(device), layout.columns
    storage, packs = packed.scheme.storage, list[Tensor]()
    for part in chunk_rows(layout.rows, ROWS_AT_ONCE) or [slice(0)]:
        codes = storage.unpack(stored[part], columns)
        packs.append(_pack(codes, name, replace(layout, rows=len(codes))))
    return torch.cat(packs)


def _pack(codes: Tensor, name: LayoutName, layout: Layout) -> Tensor:
    return (fragments if name == "fragments" else rows16).pack_codes(codes, layout)


def _unpack(codes: Tensor, name: LayoutName, layout: Layout) -> Tensor:
    """Codes of blocks of rows to stored codes int64 [rows, columns], in either layout."""
    return (fragments if name == "fragments" else rows16).unpack_codes(codes, layout)


def _to_format_codes(codes: Tensor, name: LayoutName, layout: Layout) -> Tensor:
    """Stored codes of a layout to uint8 codes of `formats`."""
    if layout.is_signed or (name == "fragments" and layout.element.integer):
        codes = (codes - int(layout.element.lowest)) & (2**layout.bits - 1)
    return codes.to(torch.uint8)


def _no_codes(weight: PreparedWeight) -> Tensor:
    return torch.empty((0, weight.shape[1]), dtype=torch.uint8, device=weight.codes.device)


def _per_row(scale: Tensor, packed: PackedTensor) -> Tensor:
    """[ceil(N/br), G] to [N, G]."""
    rows = packed.scheme.scaling.block(packed.shape)[0]
    return scale.repeat_interleave(rows, dim=0)[: packed.shape[0]]


def concatenate(weights: list[PreparedWeight]) -> PreparedWeight:
    """One weight with the rows of all, for products of one input with several matrices.

    UnsupportedError unless they share scheme and K, and each row count is a multiple of 16.
    """
    if not weights:
        raise UnsupportedError("concatenate needs at least one weight, got none")
    first = weights[0]
    for weight in weights:
        if (weight.scheme, weight.shape[1]) != (first.scheme, first.shape[1]):
            raise UnsupportedError(
                f"cannot concatenate {weight.scheme} with K = {weight.shape[1]} to {first.scheme} "
                f"with K = {first.shape[1]}: scheme and K must agree; keep the weights apart"
            )
        if weight.layout != first.layout:
            raise UnsupportedError(
                f"cannot concatenate a weight in {weight.layout} to one in "
                f"{first.layout}: move both to one device"
            )
        if weight.shape[0] % LANES:
            raise UnsupportedError(
                f"cannot concatenate a weight of {weight.shape[0]} rows: "
                f"row counts must be multiples of {LANES}; keep the weights apart"
            )
    zeros = [weight.zero for weight in weights if weight.zero is not None]
    return PreparedWeight(
        codes=torch.cat([weight.codes for weight in weights]),
        # float32 where those of one are: of a scheme either holds the other's exactly
        scale=torch.cat([weight.scale for weight in weights]),
        zero=torch.cat(zeros) if zeros else None,
        scheme=first.scheme,
        shape=(sum(weight.shape[0] for weight in weights), first.shape[1]),
        layout=first.layout,
    )


def select_rows(weight: PreparedWeight, begin: int, count: int) -> PreparedWeight:
    """Rows [begin, begin + count) of a weight, both multiples of 16; views of it."""
    if begin % LANES or count % LANES or not 0 <= begin <= begin + count <= weight.shape[0]:
        raise UnsupportedError(
            f"cannot select {count} rows from {begin} on of {weight.shape[0]}: both must be "
            f"multiples of {LANES} within the weight"
        )
    blocks = slice(begin // LANES, (begin + count) // LANES)
    return replace(
        weight,
        codes=weight.codes[blocks],
        scale=weight.scale[blocks],
        zero=None if weight.zero is None else weight.zero[blocks],
        shape=(count, weight.shape[1]),
    )


def decode_blocks(weight: PreparedWeight, blocks: Tensor | slice) -> Tensor:
    """float32 W of the chosen blocks of 16 rows, [16 B, K]; rows past N are zeros."""
    sizes, codes = weight.sizes, weight.codes[blocks]
    table = _levels(weight.scheme, weight.layout, codes.device)
    stored = _unpack(codes, weight.layout, sizes)
    # on a CPU three times as fast as table[stored]
    levels = table.index_select(0, stored.flatten()).reshape(stored.shape)
    if weight.zero is not None:
        levels = levels - unpack_scale(weight.zero[blocks], sizes)
    return levels * unpack_scale(weight.scale[blocks], sizes)


@cache
def _levels(scheme: str, name: LayoutName, device: torch.device) -> Tensor:
    """float32 [256]: the level of each stored code of a layout, on the device.

    Made once, since a CUDA graph cannot capture a copy from the host, and outside inference mode,
    since its tensors may not enter autograd later.
    """
    layout = layout_of(scheme, 1, 1)
    with torch.inference_mode(mode=False):
        table = fragments.levels(layout) if name == "fragments" else layout.levels()
        return table.to(device)
