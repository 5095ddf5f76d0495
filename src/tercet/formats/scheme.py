"""Scheme: element + scaling + storage, and the grammar of scheme names.

    name     = element [ "-" sharing ] [ "-" zero ] [ "-" scale ] [ "-twolevel" ] [ "-" storage ]
    sharing  = "g" SIZE | "channel" | "tensor" | "b" ROWS "x" SIZE
    zero     = "asym" (int8) | "hqq" (float16) | "hqq32" (float32)
    scale    = "bfloat16" | "float32" | "e8m0" | "e4m3"

`ternary`, `nonary-g128`, `int4-g64-asym`, `int8-channel`, `ternary-g64-bits2`, and the named ones
`mxfp4`, `nvfp4`. Without a sharing, elements of up to 4 bits take groups of 64, 8-bit ones one
scale a channel; without a zero, the format is symmetric; without a scale, scales are float16;
without a storage, the densest one that holds the element.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from tercet.errors import FormatError
from tercet.formats.element import ELEMENTS, Element
from tercet.formats.scaling import SCALE_DTYPES, Granularity, Scaling
from tercet.formats.storage import STORAGES, Storage


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The complete number format of a weight W [N, K].

    Attributes:
        element: the values a weight can take.
        scaling: which weights share a scale, and the scales' dtype.
        storage: how codes are packed into bytes.
    """

    element: Element
    scaling: Scaling
    storage: Storage

    def __post_init__(self) -> None:
        if len(self.element.levels) > self.storage.code_count:
            raise FormatError(
                f"storage {self.storage.name!r} holds {self.storage.code_count} codes, element "
                f"{self.element.name!r} has {len(self.element.levels)}: "
                f"use {self.element.storage!r}"
            )
        if self.scaling.zero is not None and not self.element.integer:
            raise FormatError(
                f"element {self.element.name!r} with zero points: they shift integer levels only; "
                f"use a scaling without"
            )

    def __repr__(self) -> str:
        return f"parse_scheme({self.name!r})"

    @property
    def name(self) -> str:
        """The name that `parse_scheme` reads back to this scheme."""
        for special, scheme in SPECIAL_SCHEMES.items():
            if scheme == self:
                return special
        scaling, parts = self.scaling, [self.element.name]
        match scaling.granularity:
            case Granularity.GROUP:
                parts.append(f"g{scaling.group_size}")
            case Granularity.BLOCK:
                parts.append(f"b{scaling.block_rows}x{scaling.group_size}")
            case _:
                parts.append(scaling.granularity.value)
        if scaling.zero is not None:
            parts.append(_ZERO_NAMES[scaling.zero])
        if scaling.dtype != "float16":
            parts.append(scaling.dtype)
        if scaling.second_level:
            parts.append("twolevel")
        if self.storage.name != self.element.storage:
            parts.append(self.storage.name)
        return "-".join(parts)

    def bits_per_weight(self, shape: tuple[int, int]) -> float:
        """Return bits per weight of W [N, K], counting codes, scales, zero points and padding."""
        weights = shape[0] * shape[1]
        return self.size_bytes(shape) * 8 / weights if weights else 0.0

    def size_bytes(self, shape: tuple[int, int]) -> int:
        """Return the bytes of W [N, K]: codes, scales, zero points and padding."""
        codes = shape[0] * self.storage.row_bytes(shape[1])
        return codes + self.scaling.size_bits(shape) // 8


_ZERO_WORDS = {"asym": "int8", "hqq": "float16", "hqq32": "float32"}
_ZERO_NAMES = {dtype: word for word, dtype in _ZERO_WORDS.items()}
_SCALE_WORDS = tuple(dtype for dtype in SCALE_DTYPES if dtype != "float16")

SPECIAL_SCHEMES: dict[str, Scheme] = {
    "mxfp4": Scheme(
        element=ELEMENTS["fp4_e2m1"],
        scaling=Scaling(granularity=Granularity.GROUP, group_size=32, dtype="e8m0"),
        storage=STORAGES["bits4"],
    ),
    "nvfp4": Scheme(
        element=ELEMENTS["fp4_e2m1"],
        scaling=Scaling(
            granularity=Granularity.GROUP, group_size=16, dtype="e4m3", second_level=True
        ),
        storage=STORAGES["bits4"],
    ),
}


def parse_scheme(name: str) -> Scheme:
    """Parse a scheme name (grammar above); FormatError for an unknown name offers the nearest."""
    # from Python anything may come
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FormatError(f"unknown format {name!r}: must be a name, say 'int4-g64'")
    if name in SPECIAL_SCHEMES:
        return SPECIAL_SCHEMES[name]
    element_name, *words = name.split("-")
    if element_name not in ELEMENTS:
        known = sorted((*ELEMENTS, *SPECIAL_SCHEMES))
        near = get_close_matches(element_name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise FormatError(f"unknown format {name!r}: {hint}known: {', '.join(known)}")
    chosen = ELEMENTS[element_name]
    options: dict[str, str | int | bool | Granularity] = {}
    for word in words:
        found = {"storage": word} if word in STORAGES else _scaling_option(word)
        if not found:
            raise FormatError(_unknown_word(name, word))
        if found.keys() & options.keys():
            raise FormatError(f"format {name!r}: {word!r} contradicts or repeats another part")
        options |= found
    if "granularity" not in options:
        options |= _scaling_option("g64" if chosen.bits <= 4 else "channel")
    stored = STORAGES[str(options.pop("storage", chosen.storage))]
    scaling = Scaling(**options)  # pyright: ignore[reportArgumentType]
    return Scheme(element=chosen, scaling=scaling, storage=stored)


def _scaling_option(word: str) -> dict[str, str | int | bool | Granularity]:
    """What one word of a scheme name says about the scaling; empty for a word that says nothing."""
    if word in ("channel", "tensor"):
        return {"granularity": Granularity(word)}
    if found := re.fullmatch(r"g(\d+)", word):
        return {"granularity": Granularity.GROUP, "group_size": int(found[1])}
    if found := re.fullmatch(r"b(\d+)x(\d+)", word):
        rows, columns = int(found[1]), int(found[2])
        return {"granularity": Granularity.BLOCK, "block_rows": rows, "group_size": columns}
    if word in _ZERO_WORDS:
        return {"zero": _ZERO_WORDS[word]}
    if word in _SCALE_WORDS:
        return {"dtype": word}
    return {"second_level": True} if word == "twolevel" else {}


def _unknown_word(name: str, word: str) -> str:
    fixed = ("channel", "tensor", *_ZERO_WORDS, *_SCALE_WORDS, "twolevel", *STORAGES)
    near = get_close_matches(word, fixed, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"format {name!r}: {word!r} is no part of a format name: {hint}allowed are g64, b128x128, "
        f"{', '.join(fixed)}"
    )
