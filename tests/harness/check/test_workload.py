"""check_workload: in chunks it says what it says whole, and it finds a wrong element."""

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.harness.check import at_scale as module
from tercet.harness.check.at_scale import check_workload, make_inputs
from tercet.kernel.contract import Kernels, Workload
from tercet.kernel.select import load
from tercet.ops.linear_qat import op as linear_qat
from tercet.ops.rms_norm.op import OP

CALL = Workload(name="call", sizes={"M": 37, "N": 48}, options={"residual": True})


def findings(kernels: Kernels):
    return check_workload(OP, kernels, CALL, implementation="x", device="cpu", seed=3)


@pytest.mark.parametrize("elements", [48, 500, 1 << 26])
def test_pieces_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", elements)
    forward, backward = findings(load(OP, "torch"))
    assert forward.passed
    assert backward.passed
    counts = {error.tensor: error.elements for error in (*forward.errors, *backward.errors)}
    assert counts == {
        "y": 37 * 48, "total": 37 * 48, "rstd": 37,
        "gradient of x": 37 * 48, "gradient of weight": 48, "gradient of residual": 37 * 48,
    }  # fmt: skip


def test_one_wrong_element_in_a_late_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 500)
    right = load(OP, "torch")

    def forward(*arguments: object):
        y, total, rstd = right.forward(*arguments)
        y[36, 47] += 1.0
        return y, total, rstd

    def gradient(*arguments: object):
        grad_x, grad_weight = right.gradient(*arguments)
        grad_weight[3] *= 1.1
        return grad_x, grad_weight

    bad_forward, good = findings(Kernels(forward=forward, gradient=right.gradient))
    assert "y: worst" in bad_forward.message
    assert good.passed
    _, bad = findings(Kernels(forward=right.forward, gradient=gradient))
    assert "gradient of weight: worst" in bad.message
    assert "at [3]" in bad.message


def test_bad_shapes_are_named() -> None:
    with pytest.raises(UnsupportedError, match="'rms_norm' has no axis 'Q': it has M, N"):
        make_inputs(OP, Workload(name="q", sizes={"Q": 3}), "cpu", 0)
    assert make_inputs(OP, CALL, "cpu", 0)["x"].dtype == torch.bfloat16


@pytest.mark.parametrize("coded", [False, True])
def test_what_an_op_did_not_save_is_not_cut(monkeypatch: pytest.MonkeyPatch, coded: bool) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 500)
    op = linear_qat.OP
    call = Workload(name="x", sizes={"M": 19, "N": 24, "K": 40}, options={"coded": coded})
    made = check_workload(op, load(op, "torch"), call, implementation="torch", device="cpu", seed=1)
    assert all(finding.passed for finding in made)
    counts = {error.tensor: error.elements for finding in made for error in finding.errors}
    kept = {} if coded else {"kept_codes": 19 * 40, "kept_scale": 19}
    results = {"y": 19 * 24, "gradient of x": 19 * 40, "gradient of weight": 24 * 40}
    assert counts == {**results, **kept}
