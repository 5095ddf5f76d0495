"""What a call leaves alone, also where it fails: its arguments' own properties, settings, modes."""

from pathlib import Path

import pytest

from tercet.harness.check.run import CheckReport, cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.ops.discover import find

OP = find("rms_norm")
PLAIN = cases_of(OP, ["3-17-float32", "37-576-float32"])
HEAD = """
import torch
from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward, gradient
own, own_gradient, kept = forward, gradient, {}
"""
# what is wrong -> what the finding says
FAULTS = {
    "where weight lies in memory": (
        "def forward(x, weight, residual, eps):\n"
        "    if not weight.is_contiguous():\n"
        "        weight.data = weight.data.contiguous()\n"
        "    return own(x, weight, residual, eps)\n"
    ),
    "the shape or strides of x": (
        "def forward(x, weight, residual, eps):\n"
        "    found = own(x, weight, residual, eps)\n"
        "    if x.dim() == 2:\n"
        "        x.unsqueeze_(0)\n"
        "    return found\n"
    ),
    "the attributes of weight": (
        "def forward(x, weight, residual, eps):\n"
        "    weight.seen = True\n"
        "    return own(x, weight, residual, eps)\n"
    ),
    "the folder for temporary files": (
        "import tempfile\n"
        "def forward(*arguments):\n"
        "    with tempfile.NamedTemporaryFile(delete=False):\n"
        "        return own(*arguments)\n"
    ),
    "x was written to": (
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = own(x, weight, residual, eps)\n"
        "    if x.is_inference():\n"
        "        x.copy_(y)\n"
        "    return y, total, rstd\n"
    ),
    "with deterministic algorithms: RuntimeError": (
        "def forward(x, weight, residual, eps):\n"
        "    y, total, rstd = own(x, weight, residual, eps)\n"
        "    y.put_(torch.arange(y.numel()), y.flatten().clone())\n"
        "    return y, total, rstd\n"
    ),
    "after calls that failed in the middle: grad mode": (
        "def forward(x, weight, residual, eps):\n"
        "    before = torch.is_grad_enabled()\n"
        "    torch.set_grad_enabled(False)\n"
        "    found = own(x, weight, residual, eps)\n"
        "    torch.set_grad_enabled(before)\n"
        "    return found\n"
    ),
    "after calls that failed in the middle: y": (
        "def forward(x, weight, residual, eps):\n"
        "    half = kept.pop('half', None)\n"
        "    kept['half'] = True\n"
        "    y, total, rstd = own(x, weight, residual, eps)\n"
        "    kept.clear()\n"
        "    return y * (2 if half else 1), total, rstd\n"
    ),
}


def found(tmp_path: Path, source: str) -> CheckReport:
    path = tmp_path / "candidate.py"
    path.write_text(HEAD + source)
    return check(
        OP, candidate=candidate_from(path), isolated=False, integration=False, device="cpu",
        cases=PLAIN, drawn=0,
    )  # fmt: skip


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_found_and_named(tmp_path: Path, words: str) -> None:
    report = found(tmp_path, FAULTS[words])
    assert any(words.strip() in each.message for each in report.faults), report.faults


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import tempfile, pathlib\n"
        "def forward(*arguments):\n"
        "    with tempfile.TemporaryDirectory() as folder:\n"
        "        pathlib.Path(folder, 'a').write_text('b')\n"
        "        return own(*arguments)\n",
        # its own tensors it may do anything to; what fails it may catch, and go another way
        "def forward(x, weight, residual, eps):\n"
        "    weight = weight.clone().mul_(1).unsqueeze_(0).squeeze_(0)\n"
        "    weight.seen = True\n"
        "    try:\n"
        "        with torch.no_grad():\n"
        "            return own(x, weight, residual, eps)\n"
        "    except torch.OutOfMemoryError:\n"
        "        return own(x, weight, residual, eps)\n",
    ],
)
def test_the_right_one_is_green(tmp_path: Path, source: str) -> None:
    assert not found(tmp_path, source).faults


@pytest.mark.parametrize("always", [True, False])
def test_a_mode_that_is_left_where_inputs_are_refused(tmp_path: Path, *, always: bool) -> None:
    op, path = find("embedding_packed"), tmp_path / "candidate.py"
    path.write_text(
        "import torch\n"
        "from tercet.ops.embedding_packed import torch_path\n"
        "def forward(ids, weight, dtype):\n"
        "    before = torch.is_grad_enabled()\n"
        "    torch.set_grad_enabled(False)\n"
        "    try:\n"
        "        found = torch_path.forward(ids, weight, dtype)\n"
        f"    {'finally' if always else 'except KeyError'}:\n"
        "        torch.set_grad_enabled(before)\n"
        "    torch.set_grad_enabled(before)\n"
        "    return found\n"
    )
    report = check(
        op, candidate=candidate_from(path), isolated=False, integration=False, device="cpu",
        cases=cases_of(op, ["negative-id"]), drawn=0,
    )  # fmt: skip
    words = [f"{each.check}: {each.message}" for each in report.faults]
    assert words == ([] if always else ["state: grad mode was changed and not put back"])
