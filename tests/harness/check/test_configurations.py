"""Configurations that a judged kernel is launched with, on a GPU and where it is interpreted."""

import pytest

from tercet.harness.check import configurations
from tercet.harness.check.configurations import Configurations
from tercet.kernel.tuned import table
from tercet.ops.discover import find


def test_on_a_gpu_they_are_those_that_the_tuner_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "device_name", lambda: "nvidia-h200")
    op = find("paged_attention")
    known = [
        each["configuration"]
        for each in table(op.name, "nvidia-h200")
        if each["implementation"] == "triton"
    ]
    of = Configurations.of(op, op.implementation("triton"), "cuda", interpreted=False)
    found = [of.draw(str(seed), small=True) for seed in range(20)]
    assert known
    assert all(each[0][3] in known for each in found)
    assert len({repr(each) for each in found}) > 1


def test_where_kernels_are_interpreted_small_tiles_are_drawn_too() -> None:
    op = find("linear_kl")
    one = op.implementation("triton")
    of = Configurations.of(op, one, "cpu", interpreted=True)
    small = {of.draw(str(seed), small=True)[0][3]["CHUNK"] for seed in range(20)}
    large = {of.draw(str(seed), small=False)[0][3]["CHUNK"] for seed in range(20)}
    assert small == set(one.small_space["CHUNK"])
    assert large <= set(one.space["CHUNK"])
