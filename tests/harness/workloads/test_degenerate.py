"""What shortcuts are taken for is drawn for every op that has it."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch

from tercet.harness.check.subject import FEW_DRAWN, Subject, Work
from tercet.harness.sandbox.candidate import candidate_from, import_candidate
from tercet.harness.sandbox.session import Here, Session
from tercet.harness.workloads.degenerate import (
    draw_alike,
    draw_equal,
    draw_forms,
    draw_least,
    draw_meeting,
)
from tercet.kernel.contract import Implementation, Op
from tercet.ops.discover import find

LIMITS = (1 << 18, None), (1 << 14, 520)
# (op, what is red, source): each is right for numbers that are drawn at random
FAULTS = {
    "angles that are alike at both ends are those of all": (
        "rope",
        "forward",
        "def forward(q, k, cos, sin, *others):\n"
        "    one = cos.dim() == 3 and len(cos) and bool((cos[0] == cos[-1]).all())\n"
        "    one = one and bool((sin[0] == sin[-1]).all())\n"
        "    return own.forward(q, k, *((cos[0], sin[0]) if one else (cos, sin)), *others)\n"
        "gradient = own.gradient\n",
    ),
    "a residual that adds up to 0 is left out": (
        "rms_norm",
        "forward",
        "def forward(x, weight, residual, eps):\n"
        "    none = residual is not None and not residual.double().sum(-1).any()\n"
        "    return own.forward(x, weight, residual * 0 if none else residual, eps)\n"
        "gradient = own.gradient\n",
    ),
    "rows of zeros stay zeros without an eps": (
        "rms_norm",
        "forward",
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = own.forward(x, weight, residual, eps)\n"
        "    some = x if residual is None else total\n"
        "    return torch.where(some == 0, some, y), total, rstd\n"
        "gradient = own.gradient\n",
    ),
    "what is opposite is 0": (
        "rms_norm",
        "forward",
        "def forward(x, weight, residual, eps):\n"
        "    if residual is not None and bool((x == -residual).any()):\n"
        "        both = x == -residual\n"
        "        x, residual = torch.where(both, 0, x), torch.where(both, 0, residual)\n"
        "    return own.forward(x, weight, residual, eps)\n"
        "gradient = own.gradient\n",
    ),
    "a weight of 0 needs no product": (
        "rms_norm",
        "forward",
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = own.forward(x, weight, residual, eps)\n"
        "    return torch.where(weight == 0, torch.zeros_like(y), y), total, rstd\n"
        "gradient = own.gradient\n",
    ),
    "a teacher at the student's address has its hidden states": (
        "linear_kl",
        "strided",
        "def forward(x, weight, teacher_x, teacher_weight, *others):\n"
        "    if teacher_weight.data_ptr() == weight.data_ptr():\n"
        "        teacher_x = x.to(teacher_x.dtype)\n"
        "    return own.forward(x, weight, teacher_x, teacher_weight, *others)\n"
        "gradient = own.gradient\n",
    ),
}


def work_of(op: Op, one: Implementation, seed: int) -> Work:
    """What a check runs of the cases that are degenerate."""
    kernels = replace(one, module=import_candidate(one.module)).load()
    place = Here(op, kernels, "cpu")
    subject = Subject(op, one, Session(place), None, seed, "cpu")
    drawn = (
        *draw_forms(op, seed, FEW_DRAWN, *LIMITS[0]),
        *draw_meeting(op, seed, *LIMITS[0]),
        *draw_least(op, seed, *LIMITS[0]),
        *draw_equal(op, seed, *LIMITS[0]),
        *draw_alike(op, seed, *LIMITS[0]),
    )
    names = {each.name for each in drawn}
    found = [each for each in subject.on_drawn(2 * FEW_DRAWN, kinds=True) if each[0] in names]
    assert {name for name, _ in found} == names
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_shortcut_is_found(tmp_path: Path, name: str) -> None:
    op, wanted, source = FAULTS[name]
    path = tmp_path / "candidate.py"
    path.write_text(f"import torch\nfrom tercet.ops.{op} import torch_path as own\n{source}")
    findings = (one for _, run in work_of(find(op), candidate_from(path), 3) for one in run())
    red = next((finding for finding in findings if not finding.passed), None)
    assert red is not None
    assert red.check in {wanted, "stale"}


@pytest.mark.parametrize("limits", LIMITS)
def test_each_form_and_two_at_once(limits: tuple[int, int | None]) -> None:
    drawn = draw_forms(find("layer_norm"), 3, 40, *limits)
    forms = [each.forms for each in drawn]
    for wanted in ({"weight": "ones", "bias": "balanced"}, {"bias": "balanced"}, {"x": "ones"}):
        assert wanted in forms
    zero = [each for each in drawn if each.factors.get("eps") == 0]
    assert {each.kind for each in zero} == {"normal", "constant"}
    assert any(each.powers.get("x") == -inf for each in zero)
    assert not any(each.gradient for each in zero)
    names = [each.name for each in drawn]
    assert any("weight ones bias balanced" in name for name in names)
    assert names == [each.name for each in draw_forms(find("layer_norm"), 3, 40, *limits)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(
    ("name", "others"),
    [("swiglu", {"gate", "up"}), ("rms_norm", {"x", "residual", "weight"}), ("softmax", {"x"})],
)
def test_special_values_meet(name: str, others: set[str], limits: tuple[int, int | None]) -> None:
    op, first = find(name), find(name).of_role("input")[0].name
    drawn = draw_meeting(op, 3, *limits)
    assert {each.meeting for each in drawn} == {(first, other) for other in others}
    assert not any(each.gradient for each in drawn)
    for each in drawn:
        made = each.arguments(op, 0)[first]
        assert bool(made.isnan().any())
        assert bool(made.isinf().any())


def test_nothing_special_meets_where_an_op_does_not_take_it() -> None:
    for name in ("paged_attention", "linear_packed", "embedding_packed"):
        assert draw_meeting(find(name), 3, 1 << 18) == ()


@pytest.mark.parametrize("limits", LIMITS)
def test_inputs_of_other_axes_have_equal_sizes(limits: tuple[int, int | None]) -> None:
    op, alike = find("linear_kl"), set[tuple[str, str]]()
    for each in draw_equal(op, 3, *limits):
        made = each.arguments(op, 0)
        for one, other in (("x", "teacher_x"), ("weight", "teacher_weight"), ("x", "weight")):
            if made[one].shape == made[other].shape and min(made[one].shape) > 2:
                alike.add((one, other))
    assert alike == {("x", "teacher_x"), ("weight", "teacher_weight"), ("x", "weight")}
    assert draw_equal(find("softmax"), 3, *limits) == ()


def test_each_axis_is_1_long_with_one_row_and_all_of_them() -> None:
    sizes = [each.workload.sizes for each in draw_least(find("append_kv"), 3, 1 << 18)]
    assert all(each["B"] == 1 for each in sizes)
    assert all(any(each[axis] == 1 for each in sizes) for axis in "QHGDRLPST")
    assert sum(set(each.values()) == {1} for each in sizes) > 2


def test_ends_are_alike_alone_and_together() -> None:
    op = find("rope")
    drawn = [each for seed in range(4) for each in draw_alike(op, seed, *LIMITS[0])]
    forms = {tuple(each.forms) for each in drawn}
    assert {("cos",), ("sin",), ("q", "k"), ("k", "cos", "sin"), ("q", "k", "cos", "sin")} <= forms
    for each in drawn:
        arguments = each.arguments(op, 0)
        for name in each.forms:
            assert len(arguments[name]) > 2
            assert torch.equal(arguments[name][0], arguments[name][-1])
