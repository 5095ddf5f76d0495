"""The decode kernel, built for the CPU: its threads as fibers, its instructions as C++.

The sources are those of the package but for ptx.cuh, which wraps what only a GPU has.
"""

import ctypes
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import encode, fit, parse_scheme
from tercet.kernel.contract import Case
from tercet.kernel.jit.cuda import INCLUDE, find_nvcc
from tercet.ops.linear_packed.hopper_decode import launch as hopper_decode
from tercet.ops.linear_packed.hopper_decode.plan import Plan, needs_of, shared_bytes
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.call import PackedCall, as_fragments
from tercet.packed_weight.fragments import levels, pack_codes
from tercet.packed_weight.row_codes import quantize
from tercet.packed_weight.rows16 import layout_of
from tercet.packed_weight.weight import prepare

SOURCES = Path(hopper_decode.__file__).parent
SIZES = """
extern "C" int task_bytes() { return sizeof(Task); }
extern "C" int launch_bytes() { return sizeof(Launch); }
"""

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="CUDA's headers come with nvcc")
PLANS = [(1, 1, 1, 1), (3, 1, 3, 1), (2, 1, 2, 2), (1, 2, 1, 3), (3, 2, 2, 2), (1, 4, 3, 1)]
FITTING = [
    case
    for case in OP.cases
    if OP.unfit(OP.implementation("hopper_decode"), as_fragments(OP.prepare(case.make(0)))) is None
]


Library = Callable[..., ctypes.CDLL]


@pytest.fixture(scope="module")
def library(
    tmp_path_factory: pytest.TempPathFactory,
    copy_sources: Callable[..., None],
    build_emulated: Library,
) -> Library:
    folder = tmp_path_factory.mktemp("decode")
    copy_sources(SOURCES, folder, SIZES)
    shared = folder / "packed_weight" / "hopper"
    shutil.copy(INCLUDE / "packed_weight" / "hopper" / "mma_unit.cuh", shared)

    @cache
    def library(x_dtype: torch.dtype, element: str = "") -> ctypes.CDLL:
        made = hopper_decode.build_of(x_dtype, element)
        name = "-".join(("decode", *map(str, made.defines.values())))
        library = build_emulated(folder, made, name, ("-O0",))
        library.tercet_decode.argtypes = (
            *(ctypes.POINTER(hopper_decode.Task), ctypes.POINTER(hopper_decode.Launch)),
            ctypes.c_void_p,
        )
        return library

    return library


@pytest.fixture
def emulated(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_decode, "library", library)
    monkeypatch.setattr(hopper_decode, "stream", lambda: 0)
    monkeypatch.setattr(hopper_decode, "quantize_rows", quantize)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@needs_nvcc
def test_structures_are_as_long_as_in_c(library: Library) -> None:
    found = library(torch.int8)
    assert found.task_bytes() == ctypes.sizeof(hopper_decode.Task)
    assert found.launch_bytes() == ctypes.sizeof(hopper_decode.Launch)


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", FITTING, ids=lambda case: case.name)
def test_the_cases_of_the_op(case: Case) -> None:
    arguments = case.make(0)
    found = hopper_decode.forward(
        PackedCall.from_arguments(*as_fragments(OP.prepare(arguments)).values())
    )
    expected = OP.reference(**arguments)
    limit = OP.tolerance(found.dtype).relative * OP.magnitude(**arguments)
    limit = limit + torch.finfo(found.dtype).smallest_normal
    same = (found.double() == expected) | (found.isnan() & expected.isnan())
    assert (same | ((found.double() - expected).abs() <= limit)).all()


def _product(
    m: int,
    n: int,
    k: int,
    scheme: str,
    make: Callable[[], tuple[Tensor, Tensor | None]],
    plan: Plan,
    digits: bool = False,
    quantized: bool = False,
) -> tuple[Tensor, Tensor]:
    """(result, exact sums with the weight) in float32 and float64; of x's codes if `quantized`."""
    generator = torch.Generator().manual_seed(m + n)
    parsed, dense = parse_scheme(scheme), torch.randn(n, k, generator=generator)
    packed = encode(dense, parsed, *fit(dense, parsed, "absmax"))
    weight = prepare(packed).to_layout("fragments")
    x, x_scale = make()
    y = torch.full((m, n), torch.nan)
    hopper_decode.product(
        x, x_scale, weight.codes, weight.scale, y,
        bits=weight.sizes.bits, element=weight.sizes.element.name, columns=k,
        group=weight.sizes.group, zero=weight.zero, plan=plan, digits=digits,
        quantize=quantized,
    )  # fmt: skip
    if quantized:
        codes, scale, _ = quantize(x, "int8")
        x = codes * scale[:, None]
    return y, x.float().double() @ packed.dequantize(torch.float64).T


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("scheme", ["ternary-channel", "int8-channel", "int4-g32-asym-float32"])
@pytest.mark.parametrize("m", [1, 9])
def test_any_plan_gives_the_same_exact_sums(scheme: str, m: int) -> None:
    """More row-blocks, warps, pieces and blocks of a cluster than one, in every combination."""
    results = list[Tensor]()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (m, 1190), generator=generator, dtype=torch.int8)
    for clusters, cluster_size, warps_k, warps_n in PLANS:
        plan = Plan(clusters=clusters, cluster_size=cluster_size, warps_k=warps_k, warps_n=warps_n)
        y, exact = _product(m, 75, 1190, scheme, lambda: (x, torch.ones(m)), plan)
        assert ((y - exact).abs() <= 2e-6 * exact.abs().max()).all()
        results.append(y)
    if "g32" not in scheme:
        assert all(torch.equal(results[0], other) for other in results[1:])


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("columns", [1190, 1200])
@pytest.mark.parametrize(
    ("scheme", "x"),
    [
        ("ternary-channel", torch.float8_e4m3fn),
        ("int4-g32-hqq32", torch.float8_e4m3fn),
        ("fp8_e4m3-b128x128", torch.float8_e4m3fn),
        ("fp8_e4m3-channel", torch.int8),
        ("fp8_e5m2-channel", torch.float16),
        ("fp8_e4m3-channel", torch.bfloat16),
    ],
)
def test_8_bit_floats_of_either_side(scheme: str, x: torch.dtype, columns: int) -> None:
    """Of x that lies at 16 bytes and of x that does not, with more blocks and warps than one."""
    drawn = torch.randn(9, columns, generator=torch.Generator().manual_seed(0)) * 20
    one = torch.ones(9) if x.itemsize == 1 else None
    for clusters, cluster_size, warps_k, warps_n in PLANS[2:4]:
        plan = Plan(clusters=clusters, cluster_size=cluster_size, warps_k=warps_k, warps_n=warps_n)
        y, exact = _product(9, 75, columns, scheme, lambda: (drawn.to(x), one), plan)
        assert ((y - exact).abs() <= 2e-6 * exact.abs().max()).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("element", ["fp8_e4m3", "fp8_e5m2"])
def test_every_8_bit_float_is_multiplied_as_what_it_is(element: str, dtype: torch.dtype) -> None:
    """Subnormal, largest, infinite and NaN weights, each alone in its row, against one: exactly."""
    codes = torch.arange(256, dtype=torch.uint8)[:, None]
    layout = layout_of(f"{element}-channel", 256, 1)
    y, x = torch.zeros(1, 256), torch.ones(1, 1, dtype=dtype)
    hopper_decode.product(
        x, None, pack_codes(codes, layout), torch.ones(16, 1, 16), y,
        bits=8, element=element, columns=1, group=1,
        plan=Plan(clusters=2, cluster_size=1, warps_k=1, warps_n=1),
    )  # fmt: skip
    number = levels(layout).isfinite()
    assert torch.equal(y[0, number], levels(layout)[number])
    assert not y[0, ~number].isfinite().any()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("columns", [16, 1200, 2048])
@pytest.mark.parametrize(("cluster_size", "multicast"), [(1, 1), (1, 4), (2, 2), (4, 2)])
def test_blocks_that_share_x_give_the_sums_of_blocks_alone(
    columns: int, cluster_size: int, multicast: int
) -> None:
    """Also where x ends within a block's columns, or before them: zero points need its sums."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-127, 128, (3, columns), generator=generator, dtype=torch.int8)
    plan = Plan(clusters=4, cluster_size=cluster_size, warps_k=2, warps_n=1, multicast=multicast)
    y, exact = _product(3, 75, columns, "int4-g32-asym", lambda: (x, torch.ones(3)), plan)
    assert ((y - exact).abs() <= 2e-6 * exact.abs().max()).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_that_is_not_finite_stays_alone(dtype: torch.dtype) -> None:
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[1, 299], x[3, 0] = torch.inf, torch.nan
    plan = Plan(clusters=2, cluster_size=1, warps_k=2, warps_n=1)
    y, exact = _product(5, 40, 300, "int4", lambda: (x, None), plan)
    assert not y[[1, 3]].isfinite().any()
    rest = [0, 2, 4]
    assert ((y[rest] - exact[rest]).abs() <= 2e-5 * exact[rest].abs().max()).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "scheme",
    [
        *("ternary-channel", "int4-channel", "int8-channel", "ternary-g32", "ternary-g64"),
        *("ternary-g128", "int4-g32", "int4-g64", "int4-g256", "int8-g64"),
    ],
)
def test_floats_as_digits_keep_what_small_numbers_add(scheme: str, dtype: torch.dtype) -> None:
    """One number of a row is 4096 times the others: they still count to float32's precision."""
    x = torch.randn(2, 1190, generator=torch.Generator().manual_seed(3)).to(dtype)
    x[0, 700] = 4096
    for m in (1, 2):
        for clusters, cluster_size, warps_k, warps_n in PLANS:
            plan = Plan(
                clusters=clusters, cluster_size=cluster_size, warps_k=warps_k, warps_n=warps_n
            )
            y, exact = _product(m, 75, 1190, scheme, lambda m=m: (x[:m], None), plan, True)
            assert ((y - exact).abs() <= 2e-7 * exact.abs().max(1, keepdim=True)[0]).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("cluster_size", "n"), [(1, 48), (1, 43), (2, 76)])
def test_threads_with_several_outputs_add_bias_and_residual(cluster_size: int, n: int) -> None:
    """Four at a time where rows of y begin at a multiple of four, and one by one."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(-127, 128, (16, 1190), generator=generator, dtype=torch.int8)
    bias, residual = torch.randn(n, generator=generator), torch.randn(16, n, generator=generator)
    plan = Plan(clusters=1, cluster_size=cluster_size, warps_k=2, warps_n=1)
    parsed, dense = parse_scheme("ternary-channel"), torch.randn(n, 1190, generator=generator)
    packed = encode(dense, parsed, *fit(dense, parsed, "absmax"))
    weight, x_scale = prepare(packed).to_layout("fragments"), torch.rand(16, generator=generator)
    for dtype in (torch.float32, torch.bfloat16):
        y = torch.full((16, n), torch.nan, dtype=dtype)
        hopper_decode.product(
            x, x_scale, weight.codes, weight.scale, y, bits=2, columns=1190, group=1190,
            bias=bias, residual=residual.to(dtype), plan=plan,
        )  # fmt: skip
        exact = x.double() * x_scale.double()[:, None] @ packed.dequantize(torch.float64).T
        exact = exact + bias.double() + residual.to(dtype).double()
        assert ((y.double() - exact).abs() <= torch.finfo(dtype).eps * (exact.abs() + 1)).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan, 1e-38])
@pytest.mark.parametrize("scheme", ["ternary-channel", "ternary-g64"])
@pytest.mark.parametrize(("cluster_size", "warps_k"), [(1, 2), (2, 1)])
def test_what_has_no_digits_is_multiplied_plainly(
    odd: float, cluster_size: int, warps_k: int, scheme: str
) -> None:
    """Zeros of W times inf are NaN; beside tiny numbers alone nothing is lost."""
    x = torch.zeros(2, 1100).bfloat16()
    x[0, 3], x[1, 1090] = odd, 1
    plan = Plan(clusters=2, cluster_size=cluster_size, warps_k=warps_k, warps_n=2)
    y, exact = _product(2, 40, 1100, scheme, lambda: (x, None), plan, True)
    assert exact[0].isfinite().all() == (odd == 1e-38)
    assert torch.allclose(y.double(), exact, rtol=1e-6, atol=0, equal_nan=True)


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("columns", "offset"), [(2304, 0), (2304, 1), (2300, 0), (600, 0)])
def test_rows_are_quantized_as_by_definition(columns: int, offset: int, dtype: torch.dtype) -> None:
    """More columns than the one warp of a block holds, rows that do not lie well, ties."""
    x = torch.randn(3, columns + 8, generator=torch.Generator().manual_seed(5)).to(dtype)
    x = x[:, offset : columns + offset]
    # half of the largest is a code and a half; a scale of which the reciprocal is no number
    x[0, 5], x[0, 7::9], x[1] = -8, 4, x[1] * 2**-70
    for cluster_size in (1, 2):
        plan = Plan(clusters=2, cluster_size=cluster_size, warps_k=1, warps_n=1)
        y, exact = _product(
            3, 40, columns, "ternary-channel", lambda: (x, None), plan, quantized=True
        )
        assert ((y - exact).abs() <= 2e-6 * exact.abs().max(1, keepdim=True)[0]).all()


@needs_nvcc
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients_near_a_half_become_the_codes_of_the_definition(dtype: torch.dtype) -> None:
    """All numbers of 8 digits; the quotient of half the largest is 63.5, a little less, or more."""
    numbers = torch.arange(128, 256) * 2.0 ** torch.arange(-9, 0)[:, None]
    largest = torch.tensor([128.0, 254, 255, 131, 136, 143, 175, 209])
    x = torch.cat((numbers.view(1, -1).expand(8, -1), largest[:, None]), 1)
    x = (x * torch.tensor([1, -1]).repeat(577)[:1153]).to(dtype)
    plan = Plan(clusters=2, cluster_size=1, warps_k=2, warps_n=1)
    y, exact = _product(8, 40, 1153, "ternary-channel", lambda: (x, None), plan, quantized=True)
    assert ((y - exact).abs() <= 1e-6 * exact.abs().max(1, keepdim=True)[0]).all()


@pytest.mark.parametrize(("m", "dtype"), [(9, torch.bfloat16), (1, torch.float32)])
def test_what_blocks_cannot_quantize_is_refused(m: int, dtype: torch.dtype) -> None:
    plan = Plan(clusters=1, cluster_size=1, warps_k=1, warps_n=1)
    with pytest.raises(UnsupportedError, match=f"{m} tokens of {dtype} to be quantized"):
        _product(
            m, 16, 128, "ternary-channel", lambda: (torch.ones(m, 128, dtype=dtype), None), plan,
            quantized=True,
        )  # fmt: skip


@needs_nvcc
@pytest.mark.usefixtures("emulated")
def test_a_plan_that_does_not_fit_fails_at_launch() -> None:
    plan = Plan(clusters=1, cluster_size=1, warps_k=1, warps_n=1)
    assert shared_bytes(16, 1, 128, plan, needs_of(16, 2, 1)) > 227 * 1024
    x = torch.ones(16, 16384, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="CUDA error 1 at launch"):
        _product(16, 16, 16384, "ternary-channel", lambda: (x, torch.ones(16)), plan)
