"""The baseline: what counts as worse, from made-up rows."""

import pytest

from tercet.harness.cross_compile.baseline import compare
from tercet.harness.cross_compile.report import CompileRow, Resources

ACCEPTED = Resources(
    registers=100,
    spills=8,
    shared_bytes=1024,
    wgmma=8,
    loads=16,
    stores=4,
    load_bits=128,
    store_bits=128,
    load_bits_mean=128.0,
    store_bits_mean=100.0,
)


def _row(resources: Resources | None = ACCEPTED, **changed: str) -> CompileRow:
    outcome = "refused" if resources is None else "compiled"
    row = CompileRow(
        implementation="triton",
        kernel="_forward",
        target="sm_90",
        variant="*bf16",
        outcome=outcome,
        reason=None if resources else "cannot select",
        resources=resources,
    )
    return row.model_copy(update=changed)


def _checks(now: CompileRow | None, before: CompileRow | None) -> list[str]:
    rows, accepted = ([one] if one is not None else [] for one in (now, before))
    return [finding.check for finding in compare(rows, accepted, {"sm_90"})]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"spills": 12}, "spills"),
        ({"wgmma": 0}, "instruction"),
        ({"load_bits": 64}, "vectorisation"),
        ({"store_bits_mean": 74.0}, "vectorisation"),
        ({"registers": 126}, "registers"),
    ],
)
def test_each_fault_is_found_alone(change: dict[str, int], check: str) -> None:
    assert _checks(_row(ACCEPTED.model_copy(update=change)), _row()) == [check]


@pytest.mark.parametrize(
    "change",
    [
        {"spills": 8},
        {"spills": 0},
        {"wgmma": 1},
        {"registers": 125},
        {"loads": 64, "stores": 16},
        {"store_bits_mean": 76.0},
        {"mma": 3},
    ],
)
def test_what_is_no_fault(change: dict[str, int]) -> None:
    assert _checks(_row(ACCEPTED.model_copy(update=change)), _row()) == []


def test_without_a_baseline_only_spills_fail() -> None:
    assert _checks(_row(ACCEPTED.model_copy(update={"spills": 0, "wgmma": 0})), None) == []
    assert _checks(_row(), None) == ["spills"]
    assert _checks(_row(None), None) == []


def test_refused_fails_only_where_it_compiled_before() -> None:
    assert _checks(_row(None), _row()) == ["compiles"]
    assert _checks(_row(None), _row(None)) == []


def test_a_kernel_that_is_gone_fails_for_the_targets_that_were_compiled() -> None:
    assert _checks(None, _row()) == ["baseline"]
    assert _checks(None, _row(target="sm_80")) == []


def test_what_was_skipped_is_not_gone() -> None:
    skipped = _row(None, outcome="skipped", kernel="scale.cu", reason="nvcc not found")
    assert _checks(skipped, _row(kernel="_Z5scale")) == []
