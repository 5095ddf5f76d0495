"""Rule: what a scheme and a method make of a weight, as numbers that every implementation reads."""

import struct
from dataclasses import dataclass
from functools import lru_cache

import torch

from tercet.errors import UnsupportedError, unknown_name
from tercet.formats import Scheme, parse_scheme
from tercet.formats.scaling import Granularity

METHODS = ("absmean", "absmax", "learned", "stretched")
LEARNED = ("learned", "stretched")
SCALE_DTYPES = ("float32", "float16", "bfloat16")
_STRETCHED = ("ternary", "nonary", "int2", "int3", "int4")
# of its range, what the stretched variant does not clip (ParetoQ's own code)
_KEPT = 0.99
_GROUPS = 16


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How weights become codes.

        scale = statistic / divisor, in the scheme's dtype      (absmean: 2 sum / (count divisor))
        level = round(clamp(w / scale - shift, lowest, highest))
        value = (level + shift) * scale

    Attributes:
        scheme: element, sharing and dtype of the scales.
        mean: whether the statistic is a sum of |w|; else it is max |w|, or the learned step.
        learned: whether the step is an argument.
        lowest, highest: levels.
        shift: 0.5 where an even number of levels is stretched, else 0; codes are then 2 level + 1,
            and their scale half of `scale`.
        divisor: above.
        clip_low, clip_high: the ratios w / scale that a gradient goes through (learned).
        slope: d scale / d step.
    """

    scheme: Scheme
    mean: bool
    learned: bool
    lowest: int
    highest: int
    shift: float
    divisor: float
    clip_low: float
    clip_high: float
    slope: float

    @property
    def tensor(self) -> bool:
        """Whether all of W shares one scale."""
        return self.scheme.scaling.granularity is Granularity.TENSOR

    @property
    def dtype(self) -> torch.dtype:
        """What scales are rounded to."""
        return self.scheme.scaling.torch_dtype

    def group(self, columns: int) -> int:
        """Columns of a row that share a scale."""
        return self.scheme.scaling.group_size or max(columns, 1)

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Of the scales of W [rows, columns], and of its steps."""
        return self.scheme.scaling.scale_shape((rows, columns))


@lru_cache(maxsize=256)
def rule_of(scheme: str, method: str) -> Rule:
    """The rule; UnsupportedError for a scheme that cannot be trained so, FormatError for none."""
    kind = parse_scheme(scheme)
    if method not in METHODS:
        raise UnsupportedError(unknown_name("method of fake_quantize", method, METHODS))
    element, levels = kind.element, len(kind.element.levels)
    even = method == "stretched" and levels % 2 == 0
    _check(kind, scheme, method, even)
    # not by a tensor: under torch.compile it would be a fake one, and have no value
    (stretch,) = struct.unpack("f", struct.pack("f", _KEPT * levels / 2))
    lowest, highest = int(element.lowest), int(element.highest)
    divisors = {
        "absmean": max(element.highest, 2.0),
        "absmax": element.highest,
        "learned": 1.0,
        "stretched": levels / 2,
    }
    stretched = method == "stretched"
    return Rule(
        scheme=kind,
        mean=method == "absmean",
        learned=method in LEARNED,
        lowest=lowest,
        highest=highest,
        shift=0.5 if even else 0.0,
        divisor=divisors[method],
        clip_low=-stretch if stretched else float(lowest),
        clip_high=stretch if stretched else float(highest),
        slope=1.0 / divisors[method],
    )


def _check(kind: Scheme, scheme: str, method: str, even: bool) -> None:
    scaling, element = kind.scaling, kind.element
    problem = ""
    if not element.integer:
        problem = "its element is a floating-point one: use ternary, nonary or int2 to int8"
    elif method == "stretched" and element.name not in _STRETCHED:
        problem = f"the stretched variant is for few levels: {', '.join(_STRETCHED)}"
    elif even and scaling.zero not in ("float16", "float32"):
        problem = "an even number of levels, stretched, has zero point -1/2: add -hqq to the scheme"
    elif not even and scaling.zero is not None:
        problem = "it has zero points: only stretched int2, int3 and int4 have (of -1/2)"
    elif scaling.granularity is Granularity.BLOCK or scaling.second_level:
        problem = "scales are per tensor, channel or group, without a second level"
    elif scaling.dtype not in SCALE_DTYPES:
        problem = f"scales are {', '.join(SCALE_DTYPES)}"
    elif (scaling.group_size or _GROUPS) % _GROUPS:
        problem = f"a group is a multiple of {_GROUPS} columns"
    if problem:
        raise UnsupportedError(f"fake_quantize: scheme {scheme!r}, method {method!r}: {problem}")
