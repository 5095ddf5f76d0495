"""The C++ of an Arm processor, run by an emulator with the tests of the machine's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from arm.emulated import NEWEST, OLDEST, Processor, joined, missing

from tercet import environment

emulates = pytest.mark.skipif(missing() is not None, reason=missing() or "")

ROOT = Path(__file__).parents[2]
SOME = [
    "tests/ops/test_linear_packed.py::test_each_instruction_set_matches_the_reference",
    "tests/ops/test_linear_packed.py::test_products_of_codes_are_exact",
    "tests/ops/test_linear_packed.py::test_one_token_has_the_bits_of_many",
    "tests/ops/test_linear_packed.py::test_result_does_not_depend_on_the_number_of_threads",
    "tests/ops/test_linear_packed_integers.py::test_the_largest_digits_and_codes_do_not_overflow",
    "tests/ops/test_linear_packed_integers.py::test_a_small_number_alone_in_a_short_row",
    "tests/ops/test_linear_packed_integers.py::test_what_is_no_number_comes_through",
    *(
        f"tests/ops/test_linear_packed_integers.py::test_the_bound_of_float32[{isa}-{kind}-{scheme}]"
        for isa in ("neon", "dotprod")
        for kind in ("normal", "outliers far above the rest", "every magnitude")
        for scheme in ("ternary", "nonary-g32", "int4-g128-asym", "int5-g20-asym")
    ),
    "tests/ops/test_grouped_linear_packed.py::test_each_instruction_set_matches_the_reference",
    "tests/models/test_one_token.py::test_gate_over_the_whole_range",
    *(
        f"tests/models/test_one_token.py::test_attend[{rest}]"
        for rest in ("False-None-37-5-6-2-64", "True-1.5-300-128-7-1-80", "False-None-1-None-1-1-2")
    ),
    "tests/models/test_one_token.py::test_attend_to_codes[300-7-1-80]",
    "tests/models/test_one_token.py::test_attend_to_codes[37-16-2-16]",
    "tests/models/test_one_token.py::test_attend_to_4_bits[True-37-7-1-36]",
    "tests/models/test_one_token.py::test_attend_to_4_bits[False-300-1-1-128]",
]
"""Tests that also run there, by name; `make arm` runs all that can."""


@emulates
@pytest.mark.parametrize(("name", "best"), [(NEWEST, "dotprod"), (OLDEST, "neon")])
def test_the_best_instruction_set_is_found(name: str, best: str) -> None:
    processor = Processor(name)
    assert environment.isas_of("aarch64")[processor.best_isa()] == best
    processor.close()


@emulates
def test_tests_of_products_and_attention_hold_on_arm() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "arm.emulated", "-p", "no:cacheprovider"]
    variables = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    variables["PYTHONPATH"] = str(ROOT / "tests")
    ran = subprocess.run(
        [*command, *SOME], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def test_memory_that_overlaps_is_one() -> None:
    """Keys and values lie between each other: neither may bring back what the other had before."""
    assert joined([(100, 50), (10, 20), (120, 80), (30, 5)]) == [(10, 20), (30, 5), (100, 100)]
