"""Selection: the best that may run, its reasons, and a warning for a slow path."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.kernel import requirement, select
from tercet.kernel.contract import Op, TensorSpec
from tercet.kernel.requirement import Context, Requirement
from tercet.ops.append_kv import op as append_kv
from tercet.ops.linear_packed import cpu, decoded, linear_packed, prepare, torch_path, triton
from tercet.ops.linear_packed.cases import random_weight
from tercet.ops.linear_packed.op import OP

FULL = torch.float32


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    select.forget()
    yield
    select.forget()


def test_the_compiled_path_wins_on_a_cpu() -> None:
    assert select.choose(OP, "cpu", FULL).forward is cpu.forward
    *gpu, first, second = select.explain(OP, "cpu", FULL)
    assert {one.reason for one in gpu} == {"runs on cuda, the tensors are on cpu"}
    assert (first.implementation, first.allowed, first.chosen) == ("cpu", True, True)
    assert (second.implementation, second.allowed, second.chosen) == ("torch", True, False)
    assert str(second).split() == ["torch", "may", "run", "a", "better", "one", "may", "run"]


def test_without_a_compiler_it_warns_once_and_still_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = prepare(random_weight("int4", 20, 64, seed=1)), torch.ones(1, 64)
    expected = linear_packed(x, weight)
    select.forget()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match=r"slow path 'torch', because .*cpu: no C\+\+ compiler"):
        found = linear_packed(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear_packed(x, weight)
    torch.testing.assert_close(found, expected)
    verdicts = select.explain(OP, "cpu", FULL)
    (verdict,) = [one for one in verdicts if one.implementation == "cpu"]
    assert not verdict.allowed
    assert "apt install g++" in verdict.reason


def test_on_a_gpu_the_slow_path_names_the_unmet_requirement() -> None:
    options, sizes = {"layout": "rows16"}, {"M": 1}
    with pytest.warns(UserWarning, match="triton: takes layout fragments, it is rows16; cpu: runs"):
        assert select.choose(OP, "cuda", FULL, sizes, options).forward is torch_path.forward
    verdicts = select.explain(OP, "cuda", FULL, sizes, options)
    assert [verdict.implementation for verdict in verdicts if verdict.chosen] == ["torch"]
    options = {"layout": "fragments", "activation": "none"}
    for tokens in (1, 16384):
        sizes = {"M": tokens, "N": 576, "K": 576}
        assert select.choose(OP, "cuda", FULL, sizes, options).forward is decoded.forward
    half = select.choose(OP, "cuda", torch.bfloat16, {"M": 256}, {**options, "zero": True})
    assert half.forward is triton.forward


def test_a_requirement_speaks_of_the_traits_of_an_option() -> None:
    needs = Requirement(
        dtypes=(FULL,), options={"element": ("ternary", "nonary"), "group": (0, 64)}
    )
    for scheme, unmet in (
        ("ternary-channel", None),
        ("nonary", None),
        ("int4", "takes element ternary or nonary, it is int4"),
        ("ternary-g128", "takes group 0 or 64, it is 128"),
    ):
        assert needs.unfit({}, OP.traits({"scheme": scheme})) == unmet
    assert needs.unfit({}, OP.traits({"activation": "int8"})) is None
    assert OP.traits({"scheme": "nvfp4"}) == {
        "scheme": "nvfp4", "element": "fp4_e2m1", "group": 16, "zero": False, "scale": "float32",
        "TERCET_FP8_SUMS": "short",
    }  # fmt: skip


def test_calls_of_other_sizes_and_options_are_chosen_anew() -> None:
    fields = {name: getattr(OP, name) for name in OP.__dataclass_fields__}
    *_, cpu_one, torch_one = OP.implementations
    small = Requirement(dtypes=(FULL,), ranges={"M": (1, 4)}, options={"element": ("ternary",)})
    chosen = Op(**fields | {"implementations": (replace(cpu_one, requirement=small), torch_one)})
    for m, scheme, expected in (
        (4, "ternary", cpu.forward),
        (5, "ternary", torch_path.forward),
        (4, "int4", torch_path.forward),
        (3, "ternary-g128", cpu.forward),
    ):
        for _ in range(2):
            found = select.choose(chosen, "cpu", FULL, {"M": m}, {"scheme": scheme})
            assert found.forward is expected, (m, scheme)


def test_no_implementation_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"that may run: .*triton: .*; cpu: takes"):
        select.choose(OP, "cpu", torch.float64)
    with pytest.raises(
        UnsupportedError, match=r"no implementation 'gluon': it has .*triton, cpu, torch"
    ):
        select.load(OP, "gluon")


def test_no_gradient_is_an_error_with_each_reason() -> None:
    triton_has_none, torch_has_none = (
        rf"{name}: tercet\.ops\.append_kv\.{module} defines no function gradient"
        for name, module in (("triton", "triton"), ("torch", "torch_path"))
    )
    with pytest.raises(UnsupportedError, match=rf"triton: runs on cuda, .*; {torch_has_none}"):
        select.choose_gradient(append_kv.OP, "cpu", FULL)
    with pytest.raises(UnsupportedError, match=triton_has_none):
        select.choose_gradient(append_kv.OP, "cuda", FULL)


def test_requirement_says_what_is_missing() -> None:
    needs = Requirement(devices=("cuda",), dtypes=(torch.float16,))
    assert needs.unmet(Context("cuda", torch.float16)) is None
    unmet = needs.unmet(Context("cuda", FULL))
    assert unmet == "takes torch.float16, the input is torch.float32"


def test_a_requirement_says_the_least_capability_or_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = Requirement(dtypes=(FULL,), capability=(9, 0))
    only = Requirement(dtypes=(FULL,), architecture=(9, 0))
    for capability, of_least, of_only in (
        ((8, 0), "needs compute capability 9.0 or newer, this GPU has 8.0",
         "needs compute capability 9.0 exactly, this GPU has 8.0"),
        ((9, 0), None, None),
        ((10, 0), None, "needs compute capability 9.0 exactly, this GPU has 10.0"),
        (None, "needs compute capability 9.0 or newer, this GPU has none",
         "needs compute capability 9.0 exactly, this GPU has none"),
    ):  # fmt: skip
        assert least.unmet_by(capability) == of_least
        assert only.unmet_by(capability) == of_only
    monkeypatch.setattr(requirement, "gpu_capability", lambda: (10, 0))
    assert least.unmet(Context("cuda", FULL)) is None
    assert only.unmet(Context("cuda", FULL)) == (
        "needs compute capability 9.0 exactly, this GPU has 10.0"
    )


@pytest.mark.parametrize(
    "name",
    ["hopper_prefill", "hopper_prefill_fp8", "hopper_prefill_scaled", "hopper_prefill_float"],
)
def test_wgmma_is_left_to_the_gpus_that_have_it(name: str) -> None:
    needs = OP.implementation(name).requirement
    assert needs.unmet_by((9, 0)) is None
    assert needs.unmet_by((10, 0)) is not None
    assert OP.implementation("hopper_decode").requirement.unmet_by((10, 0)) is None


def test_an_op_with_an_axis_that_is_not_declared_is_refused() -> None:
    fields = {name: getattr(OP, name) for name in OP.__dataclass_fields__}
    fields["tensors"] = (TensorSpec(name="z", axes=("M", "Q"), dtypes=(FULL,)),)
    with pytest.raises(UnsupportedError, match=r"tensor 'z' has axes \['Q'\]"):
        Op(**fields)
    with pytest.raises(UnsupportedError, match=r"no tolerance for torch.float64"):
        OP.tolerance(torch.float64)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CPU_ISA", "portable")
    assert environment.cpu_isa() == "portable"
    monkeypatch.setenv("TERCET_CPU_ISA", "sse9")
    with pytest.raises(UnsupportedError, match="TERCET_CPU_ISA='sse9': allowed are portable"):
        environment.cpu_isa()
    for given, sums in (("", "short"), ("float32", "float32")):
        monkeypatch.setenv("TERCET_FP8_SUMS", given)
        assert environment.fp8_sums() == sums
    monkeypatch.setenv("TERCET_FP8_SUMS", "long")
    with pytest.raises(UnsupportedError, match="TERCET_FP8_SUMS='long': allowed are short, flo"):
        environment.fp8_sums()


def test_a_call_on_a_cpu_asks_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking starts CUDA in this process; a forked child could not."""

    def refuse() -> tuple[int, int]:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(requirement, "gpu_capability", refuse)
    plain = Requirement(devices=("cpu",), dtypes=(torch.float32,))
    context = Context(device="cpu", dtype=torch.float32)
    assert plain.unmet(context) is None
    on_gpu = Requirement(devices=("cuda",), dtypes=(torch.float32,), capability=(9, 0))
    assert on_gpu.unmet(context) == "runs on cuda, the tensors are on cpu"
