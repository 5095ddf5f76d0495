"""linear_qat in CUDA C++, where no GPU is needed: signatures, and what is left to Triton."""

import ctypes
import re
from types import SimpleNamespace

import pytest
import torch

from tercet.ops.linear_qat import torch_path
from tercet.ops.linear_qat.arguments import QatGradientCall
from tercet.ops.linear_qat.hopper import launch as cuda
from tercet.ops.linear_qat.hopper.plan import default_configuration
from tercet.packed_weight.row_codes import quantize

_TYPES = {"int": ctypes.c_int, "int64_t": ctypes.c_int64}


def signatures() -> dict[str, list[type]]:
    """Each extern "C" function of the sources: how ctypes has to pass its arguments."""
    text = "".join(build.source.read_text(encoding="utf-8") for build in cuda.BUILDS)
    return {
        name: [
            ctypes.c_void_p if "*" in argument else _TYPES[argument.split()[0]]
            for argument in arguments.replace("const ", "").split(",")
        ]
        for name, arguments in re.findall(r'extern "C" int (\w+)\(([^)]*)\)', text)
    }


def test_every_function_is_declared_as_it_is_written() -> None:
    names = ("tercet_codes_product", "tercet_gradient_codes", "tercet_transposed_codes")
    library = SimpleNamespace(**{name: SimpleNamespace() for name in names})
    cuda.declare_products(library)  # pyright: ignore[reportArgumentType]
    cuda.declare_codings(library)  # pyright: ignore[reportArgumentType]
    declared = {name: list(getattr(library, name).argtypes) for name in names}
    assert declared == signatures()


@pytest.mark.parametrize(
    ("m", "n", "stride", "mine"),
    [
        (32, 64, 64, True),
        (32, 16384, 16384, True),
        (32, 60, 64, False),  # vectors of 8 columns
        (32, 16392, 16392, False),  # a block's registers
        (24, 64, 64, False),  # 16 rows of the turned codes
        (32, 64, 68, False),  # rows at 16 bytes
        (0, 64, 64, False),
    ],
)
def test_what_does_not_fit_is_left_to_triton(
    m: int, n: int, stride: int, mine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()

    def launch(*arguments: object) -> int:
        assert arguments[1:5] == (stride * 2, 2, m, n)
        seen.append("cuda")
        return 0

    monkeypatch.setattr(cuda, "codings", lambda: SimpleNamespace(tercet_gradient_codes=launch))
    monkeypatch.setattr(cuda, "stream", lambda: 0)
    monkeypatch.setattr(cuda.triton, "coded", lambda *_: seen.append("triton") or (None, None))
    grads = torch.zeros(m, stride, dtype=torch.bfloat16)[:, :n]
    of_rows, of_columns = cuda.coded(grads, torch.ones(n, 1), torch.ones(m), None)
    assert seen == ["cuda" if mine else "triton"]
    if mine:
        assert of_rows is not None
        assert of_columns is not None
        assert [tuple(part.shape) for part in (*of_rows, *of_columns)] == [
            (m, n), (m,), (n, m), (n,),
        ]  # fmt: skip


def test_a_failed_launch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(tercet_transposed_codes=lambda *_: 700)
    monkeypatch.setattr(cuda, "codings", lambda: failing)
    monkeypatch.setattr(cuda, "stream", lambda: 0)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        cuda.transpose_codes(torch.zeros(16, 8, dtype=torch.int8))


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a Hopper GPU",
)
def test_the_first_row_of_a_block_is_its_own_however_late_it_is_read() -> None:
    """The factors' loads are a long queue before the first row's; every tenth call was wrong."""
    rows, columns = 8 * torch.cuda.get_device_properties(0).multi_processor_count, 14336
    torch.manual_seed(1)
    grads = torch.randn(rows, columns, device="cuda").bfloat16()
    scale = torch.rand(columns, 1, device="cuda") + 0.01
    right, size, _ = quantize(grads.float() * scale.reshape(-1), "int8")
    for _ in range(200):
        found, _ = cuda.coded(grads, scale, None, None)
        assert found is not None
        assert torch.equal(found[1], size.reshape(-1))
        assert torch.equal(found[0], right)


def at(address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """The memory there, as a tensor."""
    count = torch.Size(shape).numel()
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


class Emulated:
    """The kernels of a gradient on a CPU, at the addresses that they are given."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def tercet_gradient_codes(
        self, data: int, pitch: int, number: int, m: int, n: int, column: int, one: bool,
        row: int | None, codes: int, scales: int, tops: int | None, most: int, seed: int | None,
        turned: int | None, sizes: int | None, stream: int,
    ) -> int:  # fmt: skip
        self.calls.append("codes")
        assert (number, stream) == (2, 5)
        grad = at(data, torch.bfloat16, m, pitch // 2)[:, :n].float()
        found, scale, _ = quantize(grad * at(column, torch.float32, 1 if one else n), "int8")
        at(codes, torch.int8, m, n).copy_(found)
        at(scales, torch.float32, m).copy_(scale)
        if row is not None:
            assert tops is not None
            assert turned is not None
            assert sizes is not None
            at(tops, torch.float32, most, n).fill_(1e30)
            key = None if seed is None else at(seed, torch.int64, 1)
            by_row = at(row, torch.float32, m, 1)
            found, scale = torch_path.column_codes(grad * by_row, key)
            at(turned, torch.int8, n, m).copy_(found)
            at(sizes, torch.float32, n).copy_(scale)
        return 0

    def tercet_transposed_codes(
        self, codes: int, pitch: int, out: int, rows: int, columns: int, stream: int
    ) -> int:
        self.calls.append("transposed")
        assert stream == 5
        at(out, torch.int8, columns, rows).copy_(at(codes, torch.int8, rows, pitch)[:, :columns].T)
        return 0

    def tercet_codes_product(
        self, a: int, a_pitch: int, b: int, b_pitch: int, row: int, column: int | None, one: bool,
        bias: int | None, bias_type: int, out: int, number: int, m: int, n: int, k: int,
        cluster: int, swizzle: int, stream: int,
    ) -> int:  # fmt: skip
        self.calls.append("product")
        assert (a_pitch, b_pitch, column, bias, number, stream) == (k, k, None, None, 2, 5)
        exact = torch_path.exact_product(at(a, torch.int8, m, k), at(b, torch.int8, n, k).T)
        exact *= at(row, torch.float32, m, 1)
        at(out, torch.bfloat16, m, n).copy_(exact)
        return 0


@pytest.mark.parametrize("kind", ["float", "int8", "random"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_in_one_allocation_is_that_of_the_torch_path(
    kind: str, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Emulated()
    monkeypatch.setattr(cuda, "codings", lambda: library)
    monkeypatch.setattr(cuda, "products", lambda: library)
    monkeypatch.setattr(cuda, "stream", lambda: 5)
    monkeypatch.setattr("tercet.kernel.tuned.device_name", lambda: "none")
    monkeypatch.setattr(cuda.triton, "gradient_by", lambda *_: pytest.fail("left to triton"))
    generator = torch.Generator().manual_seed(3)
    m, n, k = 48, 80, 32
    grad = torch.randn(m, 96, generator=generator).bfloat16()[:, :n]
    codes, x_codes = (
        torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        for shape in ((n, k), (m, k))
    )
    scale = torch.rand((n, 1), generator=generator) + 0.1
    x_scale = torch.rand(m, generator=generator) + 0.1
    seed = torch.tensor([9]) if kind == "random" else None
    weight_gradient = "float" if kind == "float" else "int8"
    seen = (x_codes.float() * x_scale[:, None]).bfloat16() if kind == "float" else x_codes.T
    call = QatGradientCall.from_arguments(
        grad, codes, scale, None, x_codes, x_scale, seen.contiguous(), seed, weight_gradient,
        torch.bfloat16, None if frozen else torch.bfloat16,
    )  # fmt: skip
    wanted = torch_path.gradient(call)
    for found, right in zip(cuda.gradient(call), wanted, strict=True):
        assert torch.equal(found, right)
    products = 1 if frozen or kind == "float" else 2
    assert library.calls == ["codes", "transposed", *["product"] * products]


@pytest.mark.parametrize(
    ("m", "n", "k", "cluster"),
    [
        (8192, 2048, 2048, 1),
        (8192, 512, 2048, 1),
        (2048, 2048, 8192, 1),  # 128 tiles on 132 processors
        (512, 2048, 8192, 4),  # 32
        (512, 2048, 1024, 1),  # too short a sum
        (256, 768, 8192, 5),  # 6
        (256, 768, 2048, 4),
    ],
)
def test_blocks_share_tiles_where_there_are_few(m: int, n: int, k: int, cluster: int) -> None:
    assert default_configuration(m, n, k, 132) == {"CLUSTER": cluster, "SWIZZLE": 8}
