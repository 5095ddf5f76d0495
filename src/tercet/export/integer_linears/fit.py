"""Which linear layers a GPTQ or an AWQ checkpoint can hold, and in which widths, groups and dtype.

Both formats have one group size and one dtype of scales for a whole checkpoint, and hold the linear
layers inside of the model's blocks only; what lies outside (embeddings, the head) stays in floating
point. Scales of wider groups are repeated and codes are widened, both without a change of value.
"""

import re
from dataclasses import dataclass
from math import gcd

import torch

from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export.fused_layers import fused_siblings
from tercet.export.target import is_embedding, transform_reason
from tercet.formats import Granularity
from tercet.models.split_experts import is_expert

GROUPS = (128, 64, 32, 16)
"""Columns of one scale that the kernels of engines take, beside one scale for all of a row."""
SCALE_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

_BLOCK = re.compile(r"(^|\.)\d+\.")
_SHARING = (Granularity.TENSOR, Granularity.CHANNEL, Granularity.GROUP)
_WORD_BITS = 32
_ELSEWHERE = "or export to compressed-tensors or huggingface"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one of the formats holds.

    Attributes:
        name: in a message: "GPTQ".
        widths: bits of a code, narrowest first.
        whole_columns: whether the bits of a column have to fill whole words, as those of a row of
            zero points do in both formats.
    """

    name: str
    widths: tuple[int, ...]
    whole_columns: bool


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How the linear layers of a checkpoint are held.

    Attributes:
        bits: of the codes of each module that is held packed, by its name.
        group: columns of one scale; None for one scale a row.
        dtype: of the scales, a key of SCALE_DTYPES.
        symmetric: whether no module has zero points.
        plain: names of the linear layers that are held in floating point.
    """

    bits: dict[str, int]
    group: int | None
    dtype: str
    symmetric: bool
    plain: tuple[str, ...]

    def groups(self, columns: int) -> int:
        """Scales of a row of that many weights."""
        return 1 if self.group is None else columns // self.group


def in_block(module: str) -> bool:
    """Whether a module is a layer of one of the model's numbered blocks: files do not say."""
    return _BLOCK.search(module) is not None and not is_embedding(module)


def fit(checkpoint: PackedCheckpoint, limits: Limits) -> tuple[Arrangement, dict[str, str]]:
    """How the modules are held, and why some cannot be, by name; reads scales and zero points."""
    plain = _plain(checkpoint)
    inside = {name: entry for name, entry in checkpoint.modules.items() if in_block(name)}
    found = {name: _scheme_reason(name, entry, limits) for name, entry in inside.items()}
    reasons = {name: reason for name, reason in found.items() if reason is not None}
    sound = {name: entry for name, entry in inside.items() if name not in reasons}
    own = {name: _width(checkpoint, name, limits) for name in sound}
    bits = {name: max(own[one] for one in fused_siblings(name, own)) for name in own}
    group = _group(list(sound.values()))
    dtype, inexact = _scale_dtype(checkpoint, sound)
    for name, entry in sound.items():
        reason = (
            _zero_reason(entry, own[name], limits)
            or _shape_reason(entry, bits[name], group, limits)
            or _sibling_reason(fused_siblings(name, plain))
            or (_scale_reason(entry, limits) if name in inexact else None)
        )
        if reason is not None:
            reasons[name] = reason
    if not inside:
        reasons = dict.fromkeys(checkpoint.modules, _nothing_inside(limits))
    symmetric = all(entry.scheme.scaling.zero is None for entry in sound.values())
    arrangement = Arrangement(bits=bits, group=group, dtype=dtype, symmetric=symmetric, plain=plain)
    return arrangement, reasons


def _plain(checkpoint: PackedCheckpoint) -> tuple[str, ...]:
    kept = [
        name.removesuffix(".weight")
        for name in checkpoint.names()
        if name.endswith(".weight") and len(checkpoint.layout[name][1]) == 2
    ]
    outside = [name for name in checkpoint.modules if not in_block(name)]
    return tuple(sorted(name for name in (*kept, *outside) if not is_embedding(name)))


def _scheme_reason(module: str, entry: PackedModule, limits: Limits) -> str | None:
    """Why the format cannot hold a module of that scheme and shape, or None."""
    element, scaling = entry.scheme.element, entry.scheme.scaling
    holds = f"{limits.name} holds integers of {', '.join(map(str, limits.widths))} bits"
    if is_expert(module):
        return "engines name and fuse experts each in its own way: run the checkpoint itself (vllm)"
    if (found := transform_reason(entry, limits.name)) is not None:
        return found
    if not element.integer:
        return f"{entry.format}: {holds}: compress to int4 or nonary, {_ELSEWHERE}"
    if not any(_within(element.lowest, element.highest, bits) for bits in limits.widths):
        return f"{entry.format}: {holds}: compress to int4 or nonary, {_ELSEWHERE}"
    if scaling.granularity not in _SHARING or scaling.second_level:
        return (
            f"{entry.format}: {limits.name} has one scale a row, or for groups along a row: "
            f"compress with channel or g64, {_ELSEWHERE}"
        )
    if scaling.zero not in (None, "int8"):
        return (
            f"{entry.format}: zero points in {scaling.zero}, {limits.name} holds whole ones: "
            f"compress with -asym, {_ELSEWHERE}"
        )
    columns = entry.shape[1]
    size = scaling.group_size
    if size is not None and (columns % size or size % GROUPS[-1]):
        return (
            f"{entry.format}: groups of {size} in {columns} columns: {limits.name} exports have "
            f"groups that divide the columns, of {GROUPS[-1]} or a multiple of it: compress with "
            f"g32, g64, g128 or channel"
        )
    return None


def _within(low: float, high: float, bits: int) -> bool:
    half = 1 << bits - 1
    return -half <= low and high < half


def _width(checkpoint: PackedCheckpoint, module: str, limits: Limits) -> int:
    """The narrowest width with the element's values and the zero points; 0 where there is none."""
    scheme = checkpoint.modules[module].scheme
    low, high = scheme.element.lowest, scheme.element.highest
    if scheme.scaling.zero is not None:
        zero = checkpoint.tensor(f"{module}.weight_zero")
        if zero.numel():
            low, high = min(low, float(zero.min())), max(high, float(zero.max()))
    return next((bits for bits in limits.widths if _within(low, high, bits)), 0)


def _zero_reason(entry: PackedModule, bits: int, limits: Limits) -> str | None:
    if bits:
        return None
    return (
        f"{entry.format}: zero points beyond the {limits.widths[-1]} bits that {limits.name} "
        f"holds here: compress without zero points, {_ELSEWHERE}"
    )


def _shape_reason(entry: PackedModule, bits: int, group: int | None, limits: Limits) -> str | None:
    """Why a module of that shape cannot be written in that width and group, or None."""
    rows, columns = entry.shape
    if rows * bits % _WORD_BITS or (limits.whole_columns and columns * bits % _WORD_BITS):
        needed = _WORD_BITS // gcd(bits, _WORD_BITS)
        which = "rows and columns" if limits.whole_columns else "rows"
        return (
            f"[{rows}, {columns}] in {bits} bits: {limits.name} packs them into words of 32 bits, "
            f"so {which} must be multiples of {needed}: keep this module in the plan (keep: true)"
        )
    if group is not None and columns % group:
        return (
            f"{entry.format}: one scale for {columns} columns, beside layers in groups: "
            f"{limits.name} has one group size for all, and {group} does not divide them: give all "
            f"layers channel scales, or keep this module in the plan (keep: true)"
        )
    return None


def _sibling_reason(apart: list[str]) -> str | None:
    """Why a module is not held alone that an engine multiplies together with unpacked ones."""
    if not apart:
        return None
    return (
        f"packed beside {apart[0].rpartition('.')[2]}, which is not: engines multiply both as one "
        f"weight: pack all of them in the plan, or keep all (keep: true)"
    )


def _nothing_inside(limits: Limits) -> str:
    return (
        f"no linear layer of the model's blocks is packed, and {limits.name} holds nothing else: "
        f"compress the layers, or export to huggingface"
    )


def _scale_dtype(
    checkpoint: PackedCheckpoint, modules: dict[str, PackedModule]
) -> tuple[str, list[str]]:
    """The dtype that holds every scale exactly, and no names; else float16, and who needs more."""
    inexact: dict[str, list[str]] = {}
    for name, dtype in SCALE_DTYPES.items():
        inexact[name] = [
            module
            for module, entry in modules.items()
            if entry.scheme.scaling.dtype != name and not _exact(checkpoint, module, dtype)
        ]
        if not inexact[name]:
            return name, []
    return "float16", inexact["float16"]


def _exact(checkpoint: PackedCheckpoint, module: str, dtype: torch.dtype) -> bool:
    scale = checkpoint.tensor(f"{module}.weight_scale").float()
    return torch.equal(scale.to(dtype).float(), scale)


def _scale_reason(entry: PackedModule, limits: Limits) -> str:
    return (
        f"{entry.format}: scales in {entry.scheme.scaling.dtype} that are no float16 numbers, nor "
        f"are all scales bfloat16 ones: {limits.name} has them all in one of these: compress with "
        f"scales in float16 (no -{entry.scheme.scaling.dtype}), {_ELSEWHERE}"
    )


def _group(entries: list[PackedModule]) -> int | None:
    """The widest group that divides those of every module; None for one scale a row.

    The narrowest one where none does: a row that it does not divide is refused.
    """
    sizes = [entry.scheme.scaling.group_size for entry in entries]
    if all(size is None for size in sizes):
        return None
    common = gcd(*(size or entry.shape[1] for size, entry in zip(sizes, entries, strict=True)))
    return next((group for group in GROUPS if common % group == 0), GROUPS[-1])
