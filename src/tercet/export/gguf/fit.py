"""Which type of block holds a packed weight exactly, and why others do not."""

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from tercet.checkpoints.gguf.codes import CODE_BLOCKS, CodeBlocks
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError, unknown_name
from tercet.export.target import Holding, transform_reason
from tercet.formats import Scheme


@dataclass(frozen=True, kw_only=True)
class Weight:
    """What decides how a packed weight can be held: everything but its codes."""

    scheme: Scheme
    shape: tuple[int, int]
    scale: Tensor
    zero: Tensor | None


def read_weight(checkpoint: PackedCheckpoint, module: str) -> Weight:
    """The same of a module, read from the checkpoint."""
    entry = checkpoint.modules[module]
    zeros = entry.scheme.scaling.zero is not None
    return Weight(
        scheme=entry.scheme,
        shape=entry.shape,
        scale=checkpoint.tensor(f"{module}.weight_scale"),
        zero=checkpoint.tensor(f"{module}.weight_zero") if zeros else None,
    )


def holding(checkpoint: PackedCheckpoint, module: str, asked: str | None = None) -> Holding:
    """The densest type that holds the module's weight exactly, or `asked` if that does.

    Codes that the checkpoint stores in base 3 take TQ1_0 before TQ2_0, codes of 2 bits the reverse.
    """
    entry = checkpoint.modules[module]
    transform = transform_reason(entry, "llama.cpp")
    if transform is not None:
        return Holding(module=module, reason=transform)
    weight = read_weight(checkpoint, module)
    refusals = {name: _refusal(weight, CODE_BLOCKS[name]) for name in _preferred(weight.scheme)}
    holds = [name for name, refusal in refusals.items() if refusal is None]
    if asked is not None and asked not in refusals:
        raise UnsupportedError(unknown_name("GGUF type", asked, refusals))
    chosen = asked if asked is not None else next(iter(holds), None)
    if chosen is not None and refusals[chosen] is None:
        blocks = CODE_BLOCKS[chosen]
        return Holding(
            module=module,
            kind=chosen,
            bits_per_weight=blocks.bits_per_weight,
            activation_block=blocks.activation_block,
        )
    reason = refusals[asked] if asked is not None else _nearest(refusals, weight.scheme)
    return Holding(module=module, reason=f"{reason}: {_alternative(holds, weight)}")


def _preferred(scheme: Scheme) -> list[str]:
    names = list(CODE_BLOCKS)
    if scheme.storage.name == "bits2":
        names.remove("TQ2_0")
        names.insert(0, "TQ2_0")
    return names


def _alternative(holds: list[str], weight: Weight) -> str:
    if holds:
        return f"use {holds[0]}"
    scheme = weight.scheme
    if scheme.element.integer and bool(_no_half(weight).any()):
        return f"compress with fp16 scales: {scheme.name.replace(f'-{scheme.scaling.dtype}', '')}"
    floats = CODE_BLOCKS["MXFP4"]
    if scheme.element.name == floats.element and weight.shape[1] % floats.weights == 0:
        return "compress to mxfp4"
    levels = len(scheme.element.levels)
    for name, most in (("ternary-g64", 3), ("nonary-g32", 9), ("int4-g32", 16)):
        group = int(name.rpartition("g")[2])
        if levels <= most and weight.shape[1] % group == 0:
            return f"compress to {name}"
    return "compress to int8-g32, or keep the weight as it is"


def _nearest(refusals: dict[str, str | None], scheme: Scheme) -> str | None:
    """The refusal of the densest type whose numbers suffice: what stands in the way."""
    low, high = scheme.element.lowest, scheme.element.highest
    for name, refusal in refusals.items():
        blocks = CODE_BLOCKS[name]
        holds = blocks.element is None and blocks.lowest <= low and high <= blocks.highest
        if holds and blocks.weights <= 64:
            return refusal
    return refusals["Q8_0"]


def _refusal(weight: Weight, blocks: CodeBlocks) -> str | None:
    """Why blocks of that type cannot hold the weight exactly; None where they can."""
    scheme, columns, name = weight.scheme, weight.shape[1], blocks.name
    if blocks.element is not None:
        if scheme.element.name != blocks.element or scheme.scaling.dtype != "e8m0":
            return f"{name} holds {blocks.element} times a power of two, as mxfp4 does"
    elif not scheme.element.integer:
        return f"{name} holds whole numbers times one scale, {scheme.element.name} has others"
    shared = scheme.scaling.block(weight.shape)[1]
    if shared % blocks.weights and shared < columns:
        return (
            f"{name} holds one scale per {blocks.weights} weights; this tensor has group {shared}"
        )
    if columns % blocks.weights:
        return f"{name} has blocks of {blocks.weights} weights; this tensor has {columns} columns"
    if blocks.element is not None:
        return None
    return _range_refusal(weight, blocks) or _scale_refusal(weight)


def _range_refusal(weight: Weight, blocks: CodeBlocks) -> str | None:
    element = weight.scheme.element
    low, high = int(element.lowest), int(element.highest)
    if weight.zero is None:
        if must_negate(low, high, 0, blocks) is None:
            return f"{blocks.name} holds {_range(blocks)}, {element.name} has {low} to {high}"
        return None
    zeros = cast(list[float], weight.zero.unique().tolist())
    for zero in zeros:
        if zero != round(zero):
            return f"{blocks.name} has no zero points, and this tensor's are no whole numbers"
        if must_negate(low, high, int(zero), blocks) is None:
            return (
                f"{blocks.name} has no zero points and holds {_range(blocks)}; this tensor has "
                f"{low} to {high} less a zero point of {zero:.0f}"
            )
    return None


def must_negate(low: int, high: int, zero: int, blocks: CodeBlocks) -> bool | None:
    """Whether numbers from low - zero to high - zero are held negated, with a negative scale.

    None where they fit neither way. ggml itself writes Q4_0 with negative scales: -7..8 fits so.
    """
    low, high = low - zero, high - zero
    if blocks.lowest <= low and high <= blocks.highest:
        return False
    return True if blocks.lowest <= -high and -low <= blocks.highest else None


def _range(blocks: CodeBlocks) -> str:
    return f"{blocks.lowest} to {blocks.highest}"


def _no_half(weight: Weight) -> Tensor:
    scale = weight.scale.float()
    return scale.half().float() != scale


def _scale_refusal(weight: Weight) -> str | None:
    wrong = _no_half(weight)
    if not bool(wrong.any()):
        return None
    row, column = (int(index) for index in wrong.nonzero()[0])
    return (
        f"GGUF's scales are fp16, and {int(wrong.sum())} of {wrong.numel()} scales "
        f"({weight.scheme.scaling.dtype}) are no fp16 numbers, the first "
        f"{float(weight.scale[row, column]):.9g} at [{row}, {column}]"
    )
