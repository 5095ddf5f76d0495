"""linear_packed: each instruction set, threads, fusing, bad input."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.formats import encode
from tercet.kernel.contract import Case
from tercet.ops.linear_packed import concatenate, cpu, decoded, linear_packed, prepare, torch_path
from tercet.ops.linear_packed.cases import random_weight
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.call import PackedCall
from tercet.packed_weight.row_codes import ELEMENTS, quantize

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("case", OP.cases[::2], ids=lambda case: case.name)
def test_each_instruction_set_matches_the_reference(isa: str, case: Case) -> None:
    arguments = case.make(0)
    expected, magnitude = OP.reference(**arguments), OP.magnitude(**arguments)
    found = cpu.for_isa(isa)(PackedCall.from_arguments(*OP.prepare(arguments).values()))
    limit = OP.tolerance(found.dtype).relative * magnitude
    limit = limit + torch.finfo(found.dtype).smallest_normal
    assert ((found.double() - expected).abs() <= limit).all()


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("m", [1, 5, 13])
@pytest.mark.parametrize(
    "scheme", ["ternary-channel", "nonary-tensor", "int4-channel-float32", "int8-channel"]
)
def test_products_of_codes_are_exact(isa: str, m: int, scheme: str) -> None:
    """float(exact sum) * scale * x_scale: with 8-bit weights of one sign sums pass 2^24."""
    weight = random_weight(scheme, 35, 5001, seed=1)
    held = prepare(weight)
    codes, x_scale, _ = quantize(normal(m, 5001).abs(), "int8")
    call = PackedCall.from_arguments(
        codes, *held.parts, None, None, x_scale, None, "int8", torch.float32
    )
    found = cpu.for_isa(isa)(call)
    levels = weight.scheme.element.decode(weight.unpack(), torch.float64)
    total = (codes.double() @ levels.T).float()
    assert torch.equal(found, total * weight.scale.float().reshape(-1) * x_scale[:, None])


@pytest.mark.parametrize("scheme", ["int4-g64-asym", "int3-g32", "int2-g64-hqq"])
def test_one_token_has_the_bits_of_many(scheme: str) -> None:
    """Of codes; groups and zero points too."""
    weight, x = prepare(random_weight(scheme, 70, 300, seed=1)), normal(7, 300)
    bias, added = normal(70, seed=2), normal(7, 70, seed=3)
    many = linear_packed(x, weight, bias, residual=added, activation="int8")
    for row in range(7):
        one = linear_packed(x[row], weight, bias, residual=added[row], activation="int8")
        assert torch.equal(one, many[row])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_golden_values() -> None:
    weight = random_weight("ternary-channel", 3, 4, seed=5)
    dense = weight.dequantize()
    assert set(dense.div(weight.scale.float()).unique().tolist()) == {-1.0, 0.0, 1.0}
    x = torch.eye(4)
    assert torch.equal(linear_packed(x, prepare(weight)), dense.T)
    assert torch.equal(linear_packed(x[2], prepare(weight)), dense[:, 2])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("scheme", ["ternary", "int4-asym", "int8-channel"])
@pytest.mark.parametrize("m", [1, 3, 50])
def test_result_does_not_depend_on_the_number_of_threads(scheme: str, m: int) -> None:
    weight = prepare(random_weight(scheme, 1003, 640, seed=1))
    x = torch.randn(m, 640, generator=torch.Generator().manual_seed(2))
    results = list[torch.Tensor]()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results += [linear_packed(x, weight) for _ in range(3)]
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.usefixtures("threads")
def test_python_threads_may_call_it_at_once() -> None:
    torch.set_num_threads(2)
    weight = prepare(random_weight("nonary", 512, 640, seed=1))
    inputs = [torch.randn(1 + i % 3, 640) for i in range(40)]
    expected = [linear_packed(x, weight) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: linear_packed(x, weight), inputs))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_forked_child_gets_threads_of_its_own() -> None:
    script = """
import os, torch
from tercet.ops.linear_packed import linear_packed, prepare
from tercet.ops.linear_packed.cases import random_weight
torch.set_num_threads(2)
weight = prepare(random_weight("int4", 1024, 640, seed=1))
x = torch.ones(1, 640)
expected = linear_packed(x, weight)
child = os.fork()
if child == 0:
    same = all(torch.equal(expected, linear_packed(x, weight)) for _ in range(20))
    os._exit(17 if same else 18)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env={**os.environ, **paths}, timeout=600).returncode == 17


@pytest.mark.parametrize("scheme", ["ternary", "int4-hqq", "int8-channel", "nvfp4"])
def test_fused_rows_are_the_rows_apart(scheme: str) -> None:
    parts = [prepare(random_weight(scheme, n, 192, seed=n)) for n in (48, 16, 80)]
    fused = concatenate(parts)
    assert fused.shape == (144, 192)
    assert fused.size_bytes == sum(part.size_bytes for part in parts)
    for m in (1, 5):
        x = torch.randn(m, 192)
        apart = torch.cat([linear_packed(x, part) for part in parts], dim=1)
        assert torch.equal(linear_packed(x, fused), apart)


def test_refuses_to_fuse_what_does_not_fit() -> None:
    def weight(scheme: str, n: int, k: int):
        return prepare(random_weight(scheme, n, k, seed=1))

    with pytest.raises(UnsupportedError, match="20 rows: row counts must be multiples of 16"):
        concatenate([weight("int4", 16, 64), weight("int4", 20, 64)])
    with pytest.raises(UnsupportedError, match="scheme and K must agree; keep the weights apart"):
        concatenate([weight("int4", 16, 64), weight("nonary", 16, 64)])
    with pytest.raises(UnsupportedError, match="scheme and K must agree"):
        concatenate([weight("int4", 16, 64), weight("int4", 16, 128)])
    with pytest.raises(UnsupportedError, match="at least one weight, got none"):
        concatenate([])


def test_bad_input_is_named() -> None:
    weight = prepare(random_weight("int4", 20, 64, seed=1))
    with pytest.raises(UnsupportedError, match=r"x has shape \[2, 63\].*last axis of x must be 64"):
        linear_packed(torch.ones(2, 63), weight)
    with pytest.raises(UnsupportedError, match=r"x is torch.float64: allowed are float32"):
        linear_packed(torch.ones(2, 64).double(), weight)
    with pytest.raises(
        UnsupportedError, match=r"bias is torch.float32 \[19\]: it must be .* \[20\]"
    ):
        linear_packed(torch.ones(2, 64), weight, torch.ones(19))
    with pytest.raises(UnsupportedError, match="x is on meta, the weight on cpu"):
        linear_packed(torch.ones(2, 64, device="meta"), weight)
    with pytest.raises(UnsupportedError, match="this CPU has no avx9: it runs portable"):
        cpu.for_isa("avx9")


def test_codes_and_quantizing_inside_give_the_same_bits() -> None:
    weight = prepare(random_weight("int4-asym", 40, 132, seed=1))
    x, added = torch.randn(3, 132), torch.randn(3, 40)
    for element in ELEMENTS:
        codes, scale, total = quantize(x, element)
        inside = linear_packed(x, weight, residual=added, activation=element)
        given = linear_packed(
            codes, weight, residual=added, x_scale=scale, x_sum=total, out_dtype=torch.float32
        )
        assert torch.equal(inside, given)
        assert not torch.equal(inside, linear_packed(x, weight, residual=added))


def test_golden_values_of_codes() -> None:
    """Scales of 0.5 and 2: y = 0.5 * 2 * (integer sum) + bias + residual, by hand."""
    weight = random_weight("ternary-channel", 2, 4, seed=1)
    levels = torch.tensor([[1.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])
    packed = encode(levels * 0.5, weight.scheme, torch.full((2, 1), 0.5, dtype=torch.float16), None)
    x = torch.tensor([[127, -3, 5, 1]], dtype=torch.int8)
    bias, added = torch.tensor([0.25, 0.0]), torch.tensor([[1.0, -1.0]]).bfloat16()
    scale = torch.tensor([2.0])
    y = linear_packed(x, prepare(packed), bias, residual=added, x_scale=scale)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y.float(), torch.tensor([[132.0, 0.0]]))


def test_gradient_passes_straight_through_the_quantization() -> None:
    packed = random_weight("nonary", 20, 64, seed=1)
    x, bias = torch.randn(3, 64, requires_grad=True), torch.zeros(20, requires_grad=True)
    added = torch.zeros(3, 20, requires_grad=True)
    y = linear_packed(x, prepare(packed), bias, residual=added, activation="int8")
    way = torch.randn(3, 20)
    found = torch.autograd.grad(y, (x, bias, added), way)
    torch.testing.assert_close(found[0], way @ packed.dequantize())
    torch.testing.assert_close(found[1], way.sum(0))
    assert torch.equal(found[2], way)


def test_codes_need_their_scale_and_their_own_activation() -> None:
    weight, x = prepare(random_weight("int4", 20, 64, seed=1)), torch.ones(2, 64).to(torch.int8)
    scale = torch.ones(2)
    with pytest.raises(UnsupportedError, match="'int8', x_scale missing: codes come with their"):
        linear_packed(x, weight)
    with pytest.raises(UnsupportedError, match="activation 'fp8_e4m3', x_scale given"):
        linear_packed(x, weight, x_scale=scale, activation="fp8_e4m3")
    with pytest.raises(UnsupportedError, match="activation 'none', x_scale given"):
        linear_packed(torch.ones(2, 64), weight, x_scale=scale)
    with pytest.raises(UnsupportedError, match=r"activation 'int4' to .*are none, int8, fp8_e4m3"):
        linear_packed(torch.ones(2, 64), weight, activation="int4")
    with pytest.raises(UnsupportedError, match=r"residual is torch.float32 .*must be bfloat16"):
        linear_packed(x, weight, residual=torch.ones(2, 20), x_scale=scale)


def test_nan_and_inf_in_x_come_out() -> None:
    weight = prepare(random_weight("ternary-channel", 40, 64, seed=1))
    for m in (1, 2):
        x = torch.ones(m, 64)
        x[0, 5] = torch.nan
        assert linear_packed(x, weight)[0].isnan().all()
        assert m == 1 or linear_packed(x, weight)[1].isfinite().all()


def test_compiles_whole() -> None:
    weight = prepare(random_weight("nonary", 20, 64, seed=1))
    compiled = torch.compile(
        lambda x: linear_packed(x, weight).relu(), backend="aot_eager", fullgraph=True
    )
    x = torch.randn(3, 64)
    assert torch.equal(compiled(x), linear_packed(x, weight).relu())


def test_packed_size_is_close_to_its_bits() -> None:
    shape = (256, 1024)
    for scheme, bits in (("ternary", 2.25), ("nonary", 4.25), ("int4-asym", 4.5), ("nvfp4", 6.0)):
        weight = prepare(random_weight(scheme, *shape, seed=1))
        assert weight.size_bytes * 8 == bits * shape[0] * shape[1]


@pytest.mark.parametrize("scheme", ["int8-channel", "int4-g32-asym"])
def test_a_gradient_that_cancels_in_a_whole_row_is_as_near_as_its_terms(scheme: str) -> None:
    # with one column nothing else in its row says how large the terms were
    x, weight = normal(300, 1), random_weight(scheme, 3, 1, seed=1)
    dy = normal(300, 3)
    w = weight.dequantize(torch.float64)
    dy[:, 2] = -((dy[:, :2].double() @ w[:2])[:, 0] / w[2, 0]).float()
    assert OP.gradient_magnitude is not None
    sizes = OP.gradient_magnitude([dy], x=x, weight=weight, bias=dy[0])
    levels = weight.scheme.element.decode(weight.unpack(), torch.float64).abs()
    zero = 0 if weight.zero is None else weight.zero.double().abs()
    expected = [
        sum(
            abs(float(dy[m, n])) * float(((levels + zero) * weight.scale.double())[n, 0])
            for n in range(3)
        )
        for m in range(300)
    ]
    assert sizes["x"][:, 0].tolist() == pytest.approx(expected)
    assert sizes["bias"].tolist() == pytest.approx(dy.double().abs().sum(0).tolist())
    found, limit = torch.zeros(300), OP.tolerance(torch.float32).gradient_relative
    for n in range(3):
        found = found + dy[:, n] * w[n, 0].float()
    error = (found.double() - (dy.double() @ w)[:, 0]).abs()
    assert (error <= limit * sizes["x"][:, 0]).all()
    # by the size of the result, which is what is left of them, right sums would be wrong ones
    assert (error > limit * (dy.double() @ w)[:, 0].abs()).any()


@pytest.mark.parametrize("scheme", ["int4-g32-asym", "ternary-channel"])
def test_a_weight_that_is_decoded_in_parts_gives_the_whole_product(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = random_weight(scheme, 70, 96, seed=2)
    weight = prepare(packed, DEVICE).to_layout("fragments")
    x, dy = normal(300, 96).to(DEVICE), normal(300, 70).to(DEVICE)
    w = packed.dequantize(torch.float64)
    # 33 rows at a time: parts begin within a block of 16, and the last is smaller
    monkeypatch.setattr(decoded, "_WEIGHTS_AT_ONCE", 33 * 96)
    call = PackedCall.from_arguments(
        x.view(2, 150, 96), *weight.parts, None, None, None, None, "none", torch.float32
    )
    found = decoded.forward(call)
    torch.testing.assert_close(
        found.double(), (x.double() @ w.T.to(DEVICE)).view(2, 150, 70), rtol=0, atol=1e-4
    )
    back = decoded.gradient(dy, weight, torch.float32)
    torch.testing.assert_close(back.double(), dy.double() @ w.to(DEVICE), rtol=0, atol=1e-4)
    # a weight in the other layout has its own way
    assert torch.equal(
        decoded.gradient(dy.cpu(), prepare(packed), torch.float32),
        torch_path.gradient(dy.cpu(), prepare(packed), torch.float32),
    )
