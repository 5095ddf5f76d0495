"""linear_qat in CUDA C++, where no GPU is needed: signatures, and what is left to Triton."""

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tercet.kernel.device.row_codes import quantize
from tercet.ops.linear_qat import cuda

FOLDER = Path(cuda.__file__).parent
_TYPES = {"int": ctypes.c_int, "int64_t": ctypes.c_int64}


def signatures() -> dict[str, list[type]]:
    """Each extern "C" function of the sources: how ctypes has to pass its arguments."""
    text = "".join((FOLDER / name).read_text(encoding="utf-8") for name in cuda.SOURCES)
    return {
        name: [
            ctypes.c_void_p if "*" in argument else _TYPES[argument.split()[0]]
            for argument in arguments.replace("const ", "").split(",")
        ]
        for name, arguments in re.findall(r'extern "C" int (\w+)\(([^)]*)\)', text)
    }


def test_every_function_is_declared_as_it_is_written() -> None:
    names = ("tercet_codes_product", "tercet_gradient_codes", "tercet_turned_codes")
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
    failing = SimpleNamespace(tercet_turned_codes=lambda *_: 700)
    monkeypatch.setattr(cuda, "codings", lambda: failing)
    monkeypatch.setattr(cuda, "stream", lambda: 0)
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        cuda.turned(torch.zeros(16, 8, dtype=torch.int8))


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
