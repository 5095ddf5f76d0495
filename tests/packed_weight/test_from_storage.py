"""The conversion in C++ gives torch's bits, and refuses what torch refuses, in the same words."""

from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.errors import FormatError
from tercet.formats import ELEMENTS, PackedTensor, Scheme, expected_parts, parse_scheme
from tercet.formats.storage import STORAGES
from tercet.packed_weight import from_storage
from tercet.packed_weight.rows16 import Layout, layout_of
from tercet.packed_weight.weight import PreparedWeight, prepare

SCALINGS = ("g64", "g20", "g7", "channel", "tensor", "b16x32", "b3x5")
SCALES = ("", "-bfloat16", "-float32", "-e8m0", "-e4m3", "-e4m3-twolevel")
ZEROS = ("", "-asym", "-hqq", "-hqq32")


def schemes() -> list[str]:
    """Every element in every storage that holds it; scalings, scales and zero points in turn."""
    found: list[str] = []
    for element in ELEMENTS.values():
        for storage in STORAGES.values():
            if len(element.levels) <= storage.code_count:
                at = len(found)
                zero = ZEROS[at % len(ZEROS)] if element.integer else ""
                scale = SCALES[at % len(SCALES)]
                name = f"{element.name}-{SCALINGS[at % len(SCALINGS)]}{zero}{scale}-{storage.name}"
                found.append(name.removesuffix(f"-{element.storage}"))
    return [*found, "mxfp4", "nvfp4", "int4-asym", "int8-channel-hqq"]


def refuse(packed: PackedTensor, layout: Layout) -> None:
    del packed, layout


def torch_only(monkeypatch: pytest.MonkeyPatch, packed: PackedTensor) -> PreparedWeight:
    with monkeypatch.context() as patch:
        patch.setattr(from_storage, "convert", refuse)
        return prepare(packed)


def bytes_like(part: Tensor, draw: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """A tensor like `part`, of drawn bytes."""
    size = (*part.shape[:-1], part.shape[-1] * part.element_size()) if part.ndim else (4,)
    raw = draw(size).contiguous()
    return raw.view(part.dtype).reshape(part.shape)


def random_packed(scheme: Scheme, n: int, k: int, seed: int, whole: bool) -> PackedTensor:
    """Codes of any words; scales that are numbers where `whole`, and any bits where not."""
    random = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, 256, shape, generator=random, dtype=torch.int16).to(torch.uint8)

    parts = {
        name: torch.zeros(shape, dtype=torch.float32).to(dtype)
        for name, (dtype, shape) in expected_parts(scheme, (n, k)).items()
    }
    for name, part in parts.items():
        if name == "packed" or not whole:
            parts[name] = bytes_like(part, draw)
        else:
            parts[name] = (torch.rand(part.shape, generator=random) * 5 + 0.5).to(part.dtype)
    if whole:
        levels = torch.tensor([c for c, x in enumerate(scheme.element.levels) if x == x])
        if scheme.storage.name.startswith("sparse"):
            patterns = scheme.storage.unpack(torch.zeros((1, 5), dtype=torch.uint8), 32)
            codes = patterns[:, :4].repeat(n, k // 4)
        else:
            codes = levels[torch.randint(0, len(levels), (n, k), generator=random)]
        parts["packed"] = scheme.storage.pack(codes.to(torch.uint8))
    return PackedTensor(
        codes=parts["packed"],
        scale=parts["scale"],
        zero=parts.get("zero"),
        second=parts.get("second"),
        scheme=scheme,
        shape=(n, k),
    )


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    bits = torch.int32 if one.element_size() == 4 else torch.int16
    return one.dtype == other.dtype and torch.equal(one.view(bits), other.view(bits))


SHAPES = ((1, 4), (16, 64), (17, 128), (33, 20), (70, 152), (3, 1000))


@pytest.mark.parametrize("name", schemes())
def test_gives_the_bits_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = parse_scheme(name)
    for n, k in SHAPES:
        k -= 0 if scheme.storage.name.startswith("sparse") else n % 3
        packed = random_packed(scheme, n, k, seed=n + k, whole=True)
        packed.validate()
        # padding that is no code of the element sends the weight to torch: a row's last word is odd
        if scheme.storage.pad_code < len(scheme.element.levels):
            assert from_storage.convert(packed, layout_of(scheme.name, n, k)) is not None
        mine, torchs = prepare(packed), torch_only(monkeypatch, packed)
        assert same(mine.codes, torchs.codes), (n, k)
        assert same(mine.scale, torchs.scale), (n, k)
        assert same(mine.zero, torchs.zero), (n, k)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(schemes()),
    n=st.integers(1, 40),
    k=st.integers(1, 50),
    seed=st.integers(0, 2**31),
    whole=st.booleans(),
    rank=st.integers(0, 2**31),
)
def test_refuses_what_torch_refuses(
    name: str, n: int, k: int, seed: int, whole: bool, rank: int
) -> None:
    scheme = parse_scheme(name)
    k = k * 4 if scheme.storage.name.startswith("sparse") else k
    packed = random_packed(scheme, n, k, seed, whole)
    packed.codes.view(-1)[rank % packed.codes.numel()] = rank % 256
    expected = message_of(packed.validate)
    assert message_of(lambda: prepare(packed)) == expected
    if expected is None:
        with pytest.MonkeyPatch.context() as patch:
            torchs = torch_only(patch, packed)
        mine = prepare(packed)
        assert same(mine.codes, torchs.codes)
        assert same(mine.scale, torchs.scale)
        assert same(mine.zero, torchs.zero)


def message_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except FormatError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("part", "value"),
    [("scale", torch.nan), ("scale", torch.inf), ("scale", -1.0), ("zero", -torch.inf)],
)
def test_one_wrong_number_is_named(part: str, value: float) -> None:
    packed = random_packed(parse_scheme("int4-g20-hqq"), 40, 70, seed=1, whole=True)
    tensor = packed.parts()[part]
    prepare(packed)
    tensor[39, 3] = value
    with pytest.raises(FormatError, match=rf"w.{part}: 1 values not finite or negative"):
        prepare(packed, name="w")


def test_negative_zero_is_a_scale_and_a_negative_zero_point_is_allowed() -> None:
    packed = random_packed(parse_scheme("int4-g20-hqq"), 40, 70, seed=1, whole=True)
    packed.scale[39, 3] = -0.0
    assert packed.zero is not None
    packed.zero[0, 0] = -7.5
    layout = layout_of(packed.scheme.name, *packed.shape)
    made = from_storage.convert(packed, layout)
    assert made is not None
    assert made.zero is not None
    assert made.zero[0, 0, 0] == -7.5
    assert torch.signbit(made.scale[2, 3, 7])


def test_without_a_compiler_torch_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = random_packed(parse_scheme("ternary"), 20, 64, seed=1, whole=True)
    expected = prepare(packed)
    monkeypatch.setattr(from_storage, "_library", lambda: None)
    assert from_storage.convert(packed, layout_of("ternary", 20, 64)) is None
    assert same(prepare(packed).codes, expected.codes)


def test_modes_of_two_threads_that_overlap_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own flags stay set when the mode that was entered first is left first."""
    for flag in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode"):
        monkeypatch.setattr(f"torch.utils._python_dispatch.{flag}", False)
    first, second = TorchDispatchMode(), TorchDispatchMode()
    entered, left = Event(), Event()

    def overlap() -> None:
        with second:
            entered.set()
            left.wait(600)

    other = Thread(target=overlap)
    with first:
        other.start()
        entered.wait(600)
    left.set()
    other.join()
    packed = random_packed(parse_scheme("int4-g20-hqq"), 40, 70, seed=1, whole=True)
    assert from_storage.convert(packed, layout_of(packed.scheme.name, *packed.shape)) is not None
