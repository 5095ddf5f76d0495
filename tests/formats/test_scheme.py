"""Scheme: names both ways, refusals with the nearest names, sizes by hand."""

import pickle
from copy import deepcopy
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.errors import FormatError
from tercet.formats import ELEMENTS, STORAGES, Granularity, Scaling, Scheme, parse_scheme
from tercet.formats.scaling import SCALE_DTYPES, ZERO_DTYPES

SHARINGS = (
    {"granularity": Granularity.TENSOR},
    {"granularity": Granularity.CHANNEL},
    {"granularity": Granularity.GROUP, "group_size": 64},
    {"granularity": Granularity.GROUP, "group_size": 7},
    {"granularity": Granularity.BLOCK, "group_size": 128, "block_rows": 32},
)


def every_scheme() -> list[Scheme]:
    found: list[Scheme] = []
    for element, storage in product(ELEMENTS.values(), STORAGES.values()):
        if len(element.levels) > storage.code_count:
            continue
        for sharing, dtype, zero, second in product(
            SHARINGS, SCALE_DTYPES, (None, *ZERO_DTYPES), (False, True)
        ):
            if zero is not None and not element.integer:
                continue
            scaling = Scaling(**sharing, dtype=dtype, zero=zero, second_level=second)
            found.append(Scheme(element=element, scaling=scaling, storage=storage))
    return found


def test_a_copy_is_the_same_scheme() -> None:
    for name in ("int4-g64", "ternary", "nonary-g32", "ternary-g64-sparse_2_4", "mxfp4"):
        scheme = parse_scheme(name)
        for copied in (deepcopy(scheme), pickle.loads(pickle.dumps(scheme))):
            assert copied == scheme
            assert hash(copied) == hash(scheme)
        assert repr(scheme) == f"parse_scheme('{scheme.name}')"
    assert parse_scheme("int4-g64").storage != parse_scheme("int5-g64").storage


def test_every_scheme_has_a_name_of_its_own_that_reads_back() -> None:
    schemes = every_scheme()
    assert len(schemes) > 3000
    names = {scheme.name for scheme in schemes}
    assert len(names) == len(schemes)
    assert all(parse_scheme(scheme.name) == scheme for scheme in schemes)


@pytest.mark.parametrize(
    ("given_name", "full_name"),
    [
        ("ternary", "ternary-g64"),
        ("ternary-g64-base3", "ternary-g64"),
        ("nonary-g128", "nonary-g128"),
        ("int4-asym-g64", "int4-g64-asym"),
        ("int4-hqq", "int4-g64-hqq"),
        ("int8", "int8-channel"),
        ("fp8_e4m3", "fp8_e4m3-channel"),
        ("int4-b128x64-bfloat16-bits8", "int4-b128x64-bfloat16-bits8"),
        ("mxfp4", "mxfp4"),
        ("fp4_e2m1-g32-e8m0", "mxfp4"),
        ("fp4_e2m1-g16-e4m3-twolevel", "nvfp4"),
    ],
)
def test_names_and_defaults(given_name: str, full_name: str) -> None:
    assert parse_scheme(given_name).name == full_name
    assert parse_scheme(full_name) == parse_scheme(given_name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trenary", "unknown format 'trenary': did you mean 'ternary'"),
        ("nonay-g64", "did you mean 'nonary'"),
        ("int7", r"unknown format 'int7': did you mean 'int\d'.*known: fp4_e2m1, .*, mxfp4, "),
        ("nvpf4", "did you mean 'nvfp4'"),
        ("", "unknown format ''"),
        ("int4-g", "'g' is no part of a format name: .*allowed are g64, b128x128, channel"),
        ("int4-chanel", "'chanel' is no part of a format name: did you mean 'channel'"),
        ("int4-asim", "did you mean 'asym'"),
        ("int4--asym", "'' is no part of a format name"),
        ("int4-g0", "group_size 0: must be at least 1"),
        ("int4-b0x64", "block_rows 0: must be at least 1"),
        ("int4-g64-channel", "'channel' contradicts or repeats another part"),
        ("int4-bits4-bits8", "'bits8' contradicts or repeats another part"),
        ("int4-asym-hqq", "'hqq' contradicts or repeats another part"),
        ("int4-base3", "storage 'base3' holds 3 codes, element 'int4' has 16: use 'bits4'"),
        ("int8-bits4", "use 'bits8'"),
        ("fp8_e4m3-asym", "element 'fp8_e4m3' with zero points: they shift integer levels only"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_scheme(name)


@given(st.text(max_size=12) | st.from_regex(r"(int4|ternary|x)(-[a-z0-9]{0,4}){0,3}"))
def test_any_text_is_a_scheme_or_a_format_error(name: str) -> None:
    try:
        found = parse_scheme(name)
    except FormatError:
        return
    assert parse_scheme(found.name) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": Granularity.GROUP}, "group and block need a group_size"),
        ({"granularity": Granularity.TENSOR, "group_size": 4}, "tensor and channel take none"),
        ({"granularity": Granularity.BLOCK, "group_size": 4}, "block needs block_rows"),
        ({"granularity": Granularity.CHANNEL, "block_rows": 4}, "the others take none"),
        ({"granularity": Granularity.TENSOR, "dtype": "int8"}, "scale dtype 'int8': one of float"),
        ({"granularity": Granularity.TENSOR, "zero": "int4"}, "zero dtype 'int4': one of int8"),
    ],
)
def test_bad_scalings(options: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Scaling(**options)


@pytest.mark.parametrize(
    ("name", "shape", "bits"),
    [
        ("ternary-g64", (10, 640), 1.6 + 16 / 64),
        ("ternary-g64", (1536, 576), 116 * 8 / 576 + 0.25),
        ("ternary-g128-bits2", (10, 640), 2.125),
        ("ternary-channel-sparse_2_4", (4, 160), 1.25 + 16 / 160),
        ("nonary-g64", (10, 640), 3.2 + 0.25),
        ("nonary-g64-bits4", (10, 640), 4.25),
        ("int2-g64-hqq", (10, 640), 2.5),
        ("int3-g64", (10, 640), 3.25),
        ("int4-g64", (10, 640), 4.25),
        ("int4-g64-asym", (10, 640), 4.375),
        ("int4-g64-hqq", (10, 640), 4.5),
        ("int8-channel", (10, 640), 8 + 16 / 640),
        ("int4-tensor-float32", (4, 8), 4 + 1),
        ("fp8_e4m3-b128x128-float32", (256, 256), 8 + 4 * 32 / 65536),
        ("mxfp4", (10, 640), 4.25),
        ("nvfp4", (10, 640), 4.5 + 32 / 6400),
        ("int4-g64", (0, 64), 0.0),
        ("int4-g64", (1, 1), 8 + 16),
    ],
)
def test_bits_per_weight_by_hand(name: str, shape: tuple[int, int], bits: float) -> None:
    scheme = parse_scheme(name)
    assert scheme.bits_per_weight(shape) == pytest.approx(bits, rel=1e-12)
    assert scheme.size_bytes(shape) == pytest.approx(bits * shape[0] * shape[1] / 8)
