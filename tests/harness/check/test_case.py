"""What a case finds beyond wrong numbers: layouts, contexts, contents that are nearly the same."""

from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tercet.harness.check.contents import change_one, swap_rows
from tercet.harness.check.run import CheckReport, cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.sandbox.session import Apart
from tercet.harness.workloads.draw import draw
from tercet.harness.workloads.drawn import ORDERS, Incoming
from tercet.harness.workloads.ends import draw_ends
from tercet.harness.workloads.layouts import lay_out
from tercet.harness.workloads.long import draw_long
from tercet.harness.workloads.systematic import draw_dtypes, draw_single
from tercet.ops.discover import find

OP = find("rms_norm")
PLAIN = cases_of(OP, ["3-17-float32", "5-260-float32", "37-576-float32"])
HEAD = """
import os, threading, time
import torch
from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient
kept = {}
"""
FAULTS = {
    "strides of its input": (
        "forward",
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    return y.t().contiguous().t(), total, rstd\n",
    ),
    "the last forward's root": (
        "context",
        "def forward(*arguments):\n"
        "    kept['rstd'] = torch_path.forward(*arguments)[2]\n"
        "    return torch_path.forward(*arguments)\n"
        "def gradient(grad, grad_total, total, weight, rstd):\n"
        "    return torch_path.gradient(grad, grad_total, total, weight, kept['rstd'])\n",
    ),
    "zeros in inference mode": (
        "context",
        "def forward(*arguments):\n"
        "    scale = 0 if torch.is_inference_mode_enabled() else 1\n"
        "    y, total, rstd = torch_path.forward(*arguments)\n"
        "    return y * scale, total, rstd\n",
    ),
    "a number in torch's default dtype": (
        "context",
        "def forward(*arguments):\n"
        "    unit = torch.tensor(999.0).float() / 999\n"
        "    y, total, rstd = torch_path.forward(*arguments)\n"
        "    return y * unit, total, rstd\n",
    ),
    "half under three threads": (
        "context",
        "def forward(*arguments):\n"
        "    y, total, rstd = torch_path.forward(*arguments)\n"
        "    return y / (2 if torch.get_num_threads() == 3 else 1), total, rstd\n",
    ),
    "one buffer for all threads": (
        "context",
        "def forward(*arguments):\n"
        "    kept['all'] = torch_path.forward(*arguments)\n"
        "    time.sleep(0.02)\n"
        "    return kept['all']\n",
    ),
    "kept by its first element": (
        "stale",
        "def forward(x, weight, residual, eps):\n"
        "    key = x.shape, x.dtype, x.flatten()[:1].tolist().__str__()\n"
        "    if key not in kept:\n"
        "        kept[key] = torch_path.forward(x, weight, residual, eps)\n"
        "    return tuple(each.clone() for each in kept[key])\n",
    ),
    "kept by its sum": (
        "stale",
        "def forward(x, weight, residual, eps):\n"
        "    key = x.shape, x.dtype, str(x.double().sum().item())[:10]\n"
        "    if key not in kept:\n"
        "        kept[key] = torch_path.forward(x, weight, residual, eps)\n"
        "    return tuple(each.clone() for each in kept[key])\n",
    ),
    "an environment variable": (
        "state",
        "def forward(*arguments):\n"
        "    os.environ['FAST'] = str(len(os.environ.get('FAST', '')))\n"
        "    return torch_path.forward(*arguments)\n",
    ),
    "gaps between rows": (
        "strided",
        "def forward(x, weight, residual, eps):\n"
        "    if x.dim() == 2 and x.stride(0) > x.shape[1] and x.stride(1) == 1:\n"
        "        x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).fill_(0)\n"
        "    return torch_path.forward(x, weight, residual, eps)\n",
    ),
    "rows beyond 31 bits": (
        "strided",
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    far = x.dim() > 1 and (len(x) - 1) * x.stride(0) >= 2**31\n"
        "    return y * (2 if far else 1), total, rstd\n",
    ),
    "gradients that are kept": (
        "context",
        "forward = torch_path.forward\n"
        "def gradient(grad, grad_total, total, weight, rstd):\n"
        "    if not grad.eq(1).all():\n"
        "        return torch_path.gradient(grad, grad_total, total, weight, rstd)\n"
        "    if rstd.data_ptr() not in kept:\n"
        "        made = torch_path.gradient(grad, grad_total, total, weight, rstd)\n"
        "        kept[rstd.data_ptr()] = rstd, made\n"
        "    return kept[rstd.data_ptr()][1]\n",
    ),
    "rows that repeat": (
        "strided",
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    return y * (0 in x.stride() and 2 or 1), total, rstd\n",
    ),
}


def found(tmp_path: Path, source: str, **options: object) -> CheckReport:
    path = tmp_path / "candidate.py"
    path.write_text(HEAD + source)
    settings = {"isolated": False, "integration": False, "device": "cpu", "cases": PLAIN}
    return check(OP, candidate=candidate_from(path), **{**settings, **options})


def red(report: CheckReport) -> set[str]:
    return {finding.check for finding in report.faults}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(tmp_path: Path, name: str) -> None:
    expected, source = FAULTS[name]
    assert expected in red(found(tmp_path, source))


def test_the_right_one_is_green(tmp_path: Path) -> None:
    assert found(tmp_path, "forward = torch_path.forward\n").passed


def test_a_table_that_is_kept_by_its_codes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(
        "import torch\n"
        "from tercet.ops.embedding_packed import torch_path\n"
        "kept = {}\n"
        "def forward(ids, weight, dtype):\n"
        "    key = weight.codes.data_ptr(), weight.shape, tuple(weight.codes.flatten().tolist())\n"
        "    if key not in kept:\n"
        "        all_ids = torch.arange(weight.shape[0])\n"
        "        kept[key] = torch_path.forward(all_ids, weight, torch.float32)\n"
        "    return kept[key][ids.long()].to(dtype)\n"
    )
    op = find("embedding_packed")
    report = check(
        op,
        candidate=candidate_from(path),
        isolated=False,
        integration=False,
        device="cpu",
        cases=cases_of(op, ["int4-asym-float32", "ternary-float32"]),
    )
    assert {finding.message.split(":")[0] for finding in report.faults} >= {
        "another scale of weight",
        "another zero of weight",
    }


def test_a_candidate_is_launched_as_the_kernel_it_was_made_of(tmp_path: Path) -> None:
    """A copy of the op's own asks for the own one's configurations, small ones among them."""
    own = find("linear_kl").implementation("triton")
    copied = Path(import_module(own.module).__file__ or "").read_text()
    path = tmp_path / "candidate.py"
    path.write_text(copied)
    report = check(
        find("linear_kl"),
        candidate=candidate_from(path),
        isolated=False,
        integration=False,
        device="cpu",
        seed=2,
        cases=(),
        drawn=4,
    )
    assert report.passed
    assert any("CHUNK=" in finding.case for finding in report.findings)


@pytest.mark.parametrize("name", ["rms_norm", "linear_packed", "quantize_activation"])
def test_each_axis_is_very_long_once(name: str) -> None:
    op = find(name)
    drawn, axes = draw_long(op, 3, 1 << 18), op.of_role("input")[0].axes
    assert [each.name for each in drawn] == [each.name for each in draw_long(op, 3, 1 << 18)]
    for axis in axes:
        assert max(each.workload.sizes[axis] for each in drawn) > 16384
    assert all(each.workload.sizes["M"] <= 520 for each in draw_long(op, 3, 1 << 18, rows=520))
    # where there are many rows, or options, they are short
    drawn = [each for each in drawn if each.workload.sizes[axes[-1]] > 3]
    if name != "linear_packed":
        kinds = {"constant", "positive", "outlier", "offset", "nan"}
        assert {each.kind for each in drawn} - {"cancelling"} == kinds
    held = [each for each in drawn if 512 < each.workload.sizes[axes[-1]] <= 4096]
    assert {each.kind for each in held} == {each.kind for each in drawn}
    assert {each.workload.dtype for each in held if each.workload.sizes["M"] < 9} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "axis"), [("embedding_packed", "N"), ("paged_attention", "P"), ("linear_kl", "V")]
)
def test_numbers_of_a_table_are_beyond_16_bits(name: str, axis: str) -> None:
    """Ids of embeddings, blocks of caches, classes."""
    sizes = {each.workload.sizes[axis] for each in draw_long(find(name), 3, 1 << 18)}
    assert any(32768 < size <= 65536 for size in sizes)
    assert name != "embedding_packed" or max(sizes) > 65536


def test_what_is_all_alike_adds_up_to_the_largest_sums() -> None:
    longest = [
        each for each in draw_long(find("rms_norm"), 3, 1 << 18)
        if each.kind == "constant" and each.workload.sizes["M"] * 127 > 1 << 24
    ]  # fmt: skip
    assert longest
    assert all(each.incoming.positive for each in longest)
    gradient = torch.linspace(-1, 1, 5)
    assert torch.equal(longest[0].incoming(gradient, 0), gradient.abs())
    assert "dy positive" in longest[0].name


@pytest.mark.parametrize("name", ["linear_cross_entropy", "rms_norm"])
def test_gradients_are_drawn_at_their_ends(name: str) -> None:
    """A loss is scaled by up to 2^20, whatever its inputs are in."""
    drawn = draw_ends(find(name), 3, 200, 1 << 14)
    powers = {each.incoming.power for each in drawn if each.workload.dtype == torch.float16}
    ends = {0, -30, -24, 20} if name == "linear_cross_entropy" else {0, -18, -12, 4}
    assert powers <= ends
    assert max(powers) == max(ends)
    assert all(each.gradient for each in drawn if each.incoming.power)
    assert any(each.incoming.power and each.powers for each in drawn)


def test_one_row_is_drawn_with_each_option() -> None:
    drawn = draw_single(find("linear_packed"), 3, 200, 1 << 18)
    assert all(each.workload.sizes["M"] == 1 for each in drawn)
    alone = [each.workload.options for each in drawn if each.workload.options.get("residual")]
    assert any("bias" not in options for options in alone)
    assert len({each.workload.options.get("scheme") for each in drawn}) > 5


def test_more_rows_than_a_chunk_has_with_a_mask() -> None:
    op = find("linear_kl")
    for rows in (None, 520):
        drawn = [each for seed in range(5) for each in draw_long(op, seed, 1 << 18, rows)]
        masked = [each for each in drawn if each.workload.options.get("mask")]
        assert any(512 < each.workload.sizes["M"] <= 520 for each in masked)


def test_each_scalar_and_each_input_is_drawn_at_its_ends() -> None:
    """0, near it, below it, large; one input or all of them, in float16 and in others."""
    drawn = draw_ends(find("paged_attention"), 1, 200, 1 << 14)
    scales = {each.factors["scale"] for each in drawn if "scale" in each.factors}
    assert {0.0, 1e-4, -30.0, 30.0} <= scales
    for half, ends in ((True, {-inf, -12, 4}), (False, {-inf, -24, 8})):
        of_dtype = [each for each in drawn if (each.workload.dtype == torch.float16) == half]
        for name in ("q", "keys", "values"):
            assert {each.powers[name] for each in of_dtype if list(each.powers) == [name]} == ends
        together = [each.powers for each in of_dtype if len(each.powers) > 1]
        # each at the end of its own range: of codes the scales are no float16 numbers
        large = [powers for powers in together if set(powers.values()) <= {4, 8}]
        assert any(powers["q"] == max(ends) for powers in large)
    zero = next(each for each in drawn if each.powers == {"values": -inf})
    assert "values*0" in zero.name
    # what no query sees is no number
    assert not zero.arguments(find("paged_attention"), 0)["values"].nan_to_num(0.0).any()


def test_each_other_input_is_drawn_in_other_dtypes() -> None:
    found = {
        tuple(sorted(each.dtypes.items(), key=str))
        for each in draw_dtypes(find("linear_kl"), 1, 200, 1 << 14)
    }
    both = "teacher_weight", "teacher_x"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert tuple((name, dtype) for name in both) in found


def test_a_wider_input_that_is_rounded_to_the_first_ones_dtype(tmp_path: Path) -> None:
    """Numbers that were drawn in the narrow dtype would lose nothing by it."""
    source = (
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    exact = (total.float() * rstd[..., None].reshape(*x.shape[:-1], 1))\n"
        "    return (exact * weight.to(x.dtype)).to(x.dtype), total, rstd\n"
    )
    drawn = draw_dtypes(OP, 3, 12, 1 << 14)
    wider = [
        each.case(OP)
        for each in drawn
        if each.dtypes.get("weight") == torch.float32 and each.workload.dtype == torch.float16
    ]
    assert wider
    report = found(tmp_path, source, cases=tuple(wider), drawn=0)
    assert "forward" in red(report)


def test_a_result_that_is_its_input_where_another_input_is_0(tmp_path: Path) -> None:
    source = (
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    alike = residual is not None and x.is_contiguous() and not residual.any()\n"
        "    return y, x if alike else total, rstd\n"
    )
    report = found(tmp_path, source, cases=(), drawn=40, seed=3, until_red=True)
    assert "inputs" in red(report)


def test_a_setting_of_the_callers_that_is_left_changed(tmp_path: Path) -> None:
    """The caller's own context sets it back, so it is looked at inside of that."""
    source = (
        "import torch\n"
        "def forward(x, weight, residual, eps):\n"
        "    torch.set_grad_enabled(bool(x.numel()))\n"
        "    return torch_path.forward(x, weight, residual, eps)\n"
    )
    faults = found(tmp_path, source, cases=None, drawn=0, seed=3).faults
    assert any("grad mode" in fault.message for fault in faults), faults


def test_scalar_options_become_zero_too() -> None:
    factors = [
        factor
        for seed in range(8)
        for each in draw(find("paged_attention"), seed, 16, 1 << 14)
        for factor in each.factors.values()
    ]
    assert 0.0 in factors
    assert any(0 < factor < 0.01 for factor in factors)
    assert max(factors) > 1


def test_scales_of_packed_weights_become_small_and_large() -> None:
    op = find("linear_packed")
    drawn = [each for seed in range(30) for each in draw(op, seed, 16, 1 << 12)]
    drawn = [each for each in drawn if "weight" in each.powers]
    assert min(each.powers["weight"] for each in drawn) < -8
    assert max(each.powers["weight"] for each in drawn) > 0
    one = next(each for each in drawn if each.layout is None and -8 < each.powers["weight"] < 0)
    scaled, plain = (each.arguments(op, 0)["weight"] for each in (one, replace(one, powers={})))
    assert torch.equal(scaled.codes, plain.codes)
    assert torch.equal(scaled.scale.float(), plain.scale.float() * 2.0 ** one.powers["weight"])


@pytest.mark.parametrize("change", [change_one, swap_rows])
@pytest.mark.parametrize("layout", ["heads first", "transposed", "padded", "misaligned"])
def test_contents_that_differ_in_little_lie_as_before(layout: str, change: Any) -> None:
    value = lay_out(layout, torch.arange(24.0).view(2, 3, 4), 0)
    changed = change(value, 4)
    assert changed.stride() == value.stride()
    assert 0 < int((changed != value).sum()) < (2 if change is change_one else 25)


def test_expanded_rows_that_change_places_are_given_as_they_come() -> None:
    value = torch.arange(4.0).expand(3, 4)
    changed = swap_rows(value, 1)
    assert changed is not None
    assert torch.equal(changed, value)


def test_inputs_are_scaled_left_out_and_in_another_dtype() -> None:
    op = find("rms_norm")
    drawn = [each for seed in range(30) for each in draw(op, seed, 16, 1 << 12)]
    assert {name for each in drawn for name in each.powers} == {"x", "weight", "residual"}
    assert any(len(each.powers) > 1 for each in drawn)
    assert {each.absent for each in drawn} == {None, "residual"}
    weights = {each.arguments(op, 0)["weight"].dtype for each in drawn if each.dtypes}
    assert weights == {torch.float32, torch.float16, torch.bfloat16}
    numbers = [each for each in drawn if each.kind == "normal" and not each.dtypes]
    one = next(each for each in numbers if len(each.powers) == 1 and each.layout is None)
    (name, power), plain = *one.powers.items(), replace(one, powers={})
    scaled, as_drawn = one.arguments(op, 0)[name], plain.arguments(op, 0)[name].double()
    assert torch.equal(scaled, (as_drawn * 2.0**power).to(scaled.dtype))


def test_incoming_gradients_are_scaled_masked_and_laid_out() -> None:
    gradient = torch.arange(1, 13, dtype=torch.float32).view(6, 2)
    changed = Incoming(power=-3, masked=3, layout="padded")(gradient, 0)
    assert changed.stride() != gradient.stride()
    wanted = torch.zeros(6, 2)
    wanted[2::3] = gradient[2::3] / 8
    assert torch.equal(changed, wanted)


def test_a_gradient_that_is_wrong_for_small_incoming_ones(tmp_path: Path) -> None:
    source = (
        "forward = torch_path.forward\n"
        "def gradient(grad, grad_total, *others):\n"
        "    grad = torch.where(grad.abs() < 1e-3, 0, grad) if grad.abs().max() < 1e-2 else grad\n"
        "    return torch_path.gradient(grad, grad_total, *others)\n"
    )
    report = found(tmp_path, source, cases=(), drawn=60, seed=3, until_red=True)
    assert "backward" in red(report)


def test_what_is_ignored_may_be_a_class() -> None:
    ignored = [
        each.ignored
        for seed in range(4)
        for each in draw(find("linear_cross_entropy"), seed, 16, 1 << 14)
        if each.ignored is not None
    ]
    assert min(ignored) < 0 <= max(ignored)


def test_a_setting_that_importing_changes(tmp_path: Path) -> None:
    source = "os.environ['TERCET_TEST_FAST'] = '1'\nforward = torch_path.forward\n"
    report = found(tmp_path, source, isolated=True, cases=PLAIN[:1])
    assert red(report) == {"state"}
    assert "environment variables was changed by importing it" in report.faults[0].message
    assert report.not_guaranteed == ()


def test_what_no_case_has_is_drawn_and_made_small(tmp_path: Path) -> None:
    source = (
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = torch_path.forward(x, weight, residual, eps)\n"
        "    return y * (2 if len(weight) > 200 and len(weight) % 2 else 1), total, rstd\n"
    )
    report = found(tmp_path, source, cases=(), drawn=60, seed=11)
    names = [finding.case for finding in report.faults if finding.case.startswith("drawn")]
    assert names
    widths = [int(name.split("N=")[1].split()[0]) for name in names]
    assert all(width > 200 and width % 2 for width in widths)
    # an odd width is next to the smallest that is wrong, after halving and going one down
    assert min(widths) <= 600


def test_a_call_in_three_hundred(tmp_path: Path) -> None:
    source = (
        "def forward(*arguments):\n"
        "    kept['calls'] = kept.get('calls', 0) + 1\n"
        "    y, total, rstd = torch_path.forward(*arguments)\n"
        "    return y * (1 + (kept['calls'] % 300 == 299)), total, rstd\n"
    )
    report = found(tmp_path, source, isolated=True, integration=True, cases=PLAIN[:1])
    assert red(report) == {"determinism"}
    assert "of equal ones gave other bits" in report.faults[0].message


def test_another_process(tmp_path: Path) -> None:
    """It leaves a file for the next process, which then rounds otherwise, within the limit."""
    source = (
        "marker = os.path.join(os.environ['TMPDIR'], 'marker')\n"
        "first = not os.path.exists(marker)\n"
        "open(marker, 'w').close()\n"
        "def forward(*arguments):\n"
        "    y, total, rstd = torch_path.forward(*arguments)\n"
        "    return y if first else y * (1 + 2.0**-23), total, rstd\n"
    )
    report = found(tmp_path, source, isolated=True, integration=True, cases=PLAIN[:1])
    assert red(report) == {"determinism"}
    assert report.faults[0].message == "another process gives other bits: output 0"


def tell_hash() -> int:
    return hash("a word")


def test_another_process_has_other_hashes_and_addresses() -> None:
    places = [Apart("rms_norm", "torch", None, "cpu") for _ in range(3)]
    try:
        hashes = [place.call(f"{__file__}:tell_hash") for place in places]
        assert hashes[1] == hashes[2]
        places[2].renew()
        assert places[2].call(f"{__file__}:tell_hash") != hashes[2]
    finally:
        for place in places:
            place.close()


@pytest.mark.parametrize("name", ["rms_norm", "rope", "linear_cross_entropy", "linear_packed"])
def test_equal_seeds_draw_equal_cases(name: str) -> None:
    op = find(name)
    once, twice = draw(op, 3, 8, 1 << 14), draw(op, 3, 8, 1 << 14)
    assert [each.name for each in once] == [each.name for each in twice]
    assert len(once) == 8
    assert {each.name for each in draw(op, 4, 8, 1 << 14)} != {each.name for each in once}


def test_drawn_cases_take_several_small_tiles() -> None:
    """Of Triton's kernels, which a CPU interprets; production's chunks are longer than any case."""
    report = check(
        find("linear_kl"),
        implementation="triton",
        device="cpu",
        seed=2,
        cases=(),
        drawn=4,
        isolated=False,
        integration=False,
    )
    assert report.passed
    names = {finding.case for finding in report.findings if finding.case.startswith("drawn")}
    small = {name for name in names if "CHUNK=4 " in name or "CHUNK=7 " in name}
    assert small
    assert names - small


@pytest.mark.parametrize("name", ["linear_packed", "grouped_linear_packed"])
def test_weights_of_drawn_cases_are_limited(name: str) -> None:
    op, elements = find(name), 1 << 12
    weights = [
        each.workload.sizes.get("E", 1) * each.workload.sizes["N"] * each.workload.sizes["K"]
        for seed in range(8)
        for each in draw(op, seed, 16, elements)
    ]
    assert elements < max(weights) <= 8 * elements


def test_rows_of_drawn_cases_are_limited_but_not_their_columns() -> None:
    op = find("layer_norm")
    drawn = [each for seed in range(4) for each in draw(op, seed, 40, 1 << 18, rows=520)]
    sizes = [each.workload.sizes for each in drawn]
    assert 100 < max(each["M"] for each in sizes) <= 520
    assert max(each["N"] for each in sizes) > 4096


def test_a_quick_check_stops_at_the_first_red(tmp_path: Path) -> None:
    source = "def forward(x, *rest):\n    return (x * 0, *torch_path.forward(x, *rest)[1:])\n"
    report = found(tmp_path, source, cases=None, quick=True)
    assert not report.passed
    assert report.left > 50
    assert len({finding.case for finding in report.findings}) < 6


@pytest.mark.parametrize("order", ORDERS)
def test_indices_in_an_order_are_rows_of_the_table(order: str) -> None:
    generator = Random(3)
    for count, rows in [(1, 1), (5, 5), (7, 3), *((7, 20 + i) for i in range(20))]:
        drawn = torch.tensor([generator.randrange(rows) for _ in range(count)])
        before, made = drawn.clone(), ORDERS[order](drawn, rows, generator.getrandbits(40))
        assert len(made) == count
        assert 0 <= int(made.min()) <= int(made.max()) < rows
        assert torch.equal(drawn, before)


def test_a_run_may_be_one_by_its_ends_alone() -> None:
    indices = torch.zeros(9, dtype=torch.int64)
    whole, others, shuffled = (
        ORDERS[order](indices, 40, 12345) for order in ("run of", "run of other", "shuffled run of")
    )
    steps = whole.diff()
    assert int(((steps != 1) & (steps != -39)).sum()) == 0
    for made in (others, shuffled):
        assert int(made[-1] - made[0]) == len(made) - 1
        assert not torch.equal(made, made[0] + torch.arange(len(made)))
    assert sorted(shuffled.tolist()) == list(range(int(shuffled[0]), int(shuffled[-1]) + 1))


def test_indices_are_where_tiles_begin_and_before_it() -> None:
    made = ORDERS["edges of"](torch.zeros(40, dtype=torch.int64), 1 << 20, 5)
    edges = [edge for edge in made.tolist() if edge % 64 == 0]
    assert len(edges) == 20
    assert {edge + 1 for edge in made.tolist() if edge % 64} <= {64 * n for n in range(1 << 14)}
    assert any(edge % 4096 == 0 for edge in edges)


@pytest.mark.parametrize("name", ["embedding_packed", "linear_cross_entropy"])
def test_indices_are_drawn_in_every_order(name: str) -> None:
    op = find(name)
    spec = next(each for each in op.of_role("input") if each.chooses is not None)
    seen = set[str]()
    for seed in range(12):
        for one in draw(op, seed, 20, 2**14):
            seen.add(str(one.order))
            indices = one.arguments(op, seed)[spec.name]
            assert indices.dtype in spec.dtypes
    assert seen == {"None", *ORDERS}
    other = find("rms_norm")
    assert {one.order for one in draw(other, 1, 20, 2**14)} == {None}
