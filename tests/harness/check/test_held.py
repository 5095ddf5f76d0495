"""Results that a caller still holds, calls from many threads, and gradients in another process."""

from pathlib import Path

import pytest

from tercet.harness.check.run import CheckReport, cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.ops.discover import find

OP = find("rms_norm")
PLAIN = cases_of(OP, ["37-576-float32"])
HEAD = """
import sys, threading, time
import torch
from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import forward, gradient
own, own_gradient, kept = forward, gradient, {}
"""
RING = """
def put(name, value):
    ring = kept.setdefault((name, value.shape, value.dtype), [])
    if len(ring) >= 16:
        value = ring.pop(0).copy_(value)
    ring.append(value)
    return value
"""
FAULTS = {
    "buffers in turn": RING + "def forward(*arguments):\n"
    "    y, total, rstd = own(*arguments)\n"
    "    with torch.no_grad():\n"
    "        return put('y', y), total, rstd\n",
    "gradients in turn": RING + "def gradient(*arguments):\n"
    "    first, *others = own_gradient(*arguments)\n"
    "    return put('grad', first), *others\n",
}


def found(tmp_path: Path, source: str, **options: object) -> CheckReport:
    path = tmp_path / "candidate.py"
    path.write_text(HEAD + source)
    settings = {"isolated": False, "device": "cpu", "cases": PLAIN}
    return check(OP, candidate=candidate_from(path), drawn=0, **{**settings, **options})


@pytest.mark.parametrize("name", FAULTS)
def test_a_result_that_is_held_is_not_written_to_again(tmp_path: Path, name: str) -> None:
    report = found(tmp_path, FAULTS[name])
    held = [each.message for each in report.faults if each.check == "stale"]
    assert any("was overwritten by one of the" in message for message in held), report.faults


@pytest.mark.parametrize(("words", "count"), [("", 300), ("", 10**9), (", x.dtype", 300)])
def test_another_way_after_many_calls(tmp_path: Path, words: str, count: int) -> None:
    """In all dtypes together calls are many; of one shape in one dtype hardly ever."""
    source = (
        "def forward(x, *others):\n"
        f"    key = x.shape{words}\n"
        "    kept[key] = kept.get(key, 0) + 1\n"
        "    y, *rest = own(x, *others)\n"
        f"    odd = kept[key] > {count} and x.dtype != torch.float32\n"
        "    return y.flip(-1) if odd else y, *rest\n"
    )
    cases = cases_of(OP, ["37-576-float32", "3-17-bfloat16", "37-576-bfloat16"])
    report = found(tmp_path, source, integration=False, cases=cases)
    words = {each.message.split(" of ")[-1] for each in report.faults}
    assert words == ({"equal ones gave other bits"} if count == 300 else set()), report.faults


def test_scratch_that_threads_share(tmp_path: Path) -> None:
    source = (
        "scratch = {}\n"
        "def forward(x, weight, residual, eps):\n"
        "    room = scratch.setdefault(x.shape, torch.empty_like(x))\n"
        "    room.copy_(x)\n"
        "    time.sleep(0.01)  # others have their turn\n"
        "    return own(room, weight, residual, eps)\n"
    )
    report = found(tmp_path, source, integration=False)
    assert [finding.message.split(":")[0] for finding in report.faults] == ["several calls at once"]


def test_gradients_in_another_process(tmp_path: Path) -> None:
    """Sums are taken in an order that follows from a hash, which each process has its own of."""
    source = (
        "def gradient(*arguments):\n"
        "    first, *others = own_gradient(*arguments)\n"
        "    return first * (1 + 2.0**-23 * (hash('a word') % 97)), *others\n"
    )
    report = found(tmp_path, source, isolated=True)
    assert [finding.message for finding in report.faults] == [
        "another process gives other bits: gradient of x"
    ]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            "def forward(x, *others):\n    kept['x'] = x.detach()\n    return own(x, *others)\n",
            "call 1: x",
        ),
        (
            "def forward(*arguments):\n"
            "    found = own(*arguments)\n"
            "    kept['last'] = [each.detach() for each in found[:1]]\n"
            "    return found\n",
            "call 1: output 0",
        ),
        (
            "def gradient(grad, *others):\n"
            "    found = own_gradient(grad, *others)\n"
            "    kept['last'] = found[0]\n"
            "    return found\n",
            "call 1: the gradient of x",
        ),
    ],
)
def test_memory_that_a_caller_cannot_free(tmp_path: Path, source: str, what: str) -> None:
    report = found(tmp_path, source)
    held = [each.message for each in report.faults if each.check == "state"]
    assert held == [f"a call whose caller lets go of everything: {what} is still held"]


def test_the_right_one_is_green(tmp_path: Path) -> None:
    assert found(tmp_path, "").passed
