"""`tercet kernel profile`: as many calls as are asked for."""

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]
QUESTION = (
    "kernel", "profile", "swiglu", "--device", "cpu", "--implementation", "torch", "--no-ncu",
)  # fmt: skip


def test_profiles_each_shape(tercet: Run) -> None:
    done = tercet(*QUESTION, "--shape", "M=8,N=64", "--shape", "M=4,N=32", "--json")
    reports = json.loads(done.out)["reports"]
    assert [report["workload"] for report in reports] == ["M=8 N=64 bfloat16", "M=4 N=32 bfloat16"]
    assert all(report["timeline"]["call_us"] > 0 for report in reports)


def test_profiles_the_calls_of_a_model(tercet: Run) -> None:
    done = tercet(*QUESTION, "--model", "llama-3-8b", "--tokens", "2", "--json")
    reports = json.loads(done.out)["reports"]
    assert reports
    assert all("M=2 N=14336" in report["workload"] for report in reports)


def test_something_must_be_asked_for(tercet: Run) -> None:
    assert "give --shape M=1024,N=1024 or --model" in tercet(*QUESTION).error
