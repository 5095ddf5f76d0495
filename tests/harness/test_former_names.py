"""Records of a kernel that was renamed since are found under its name of today."""

import pytest

from tercet.harness.former_names import use_current_names
from tercet.ops.discover import discover
from tercet.records import Environment, Record


def _bench(subject: str, **settings: str) -> Record:
    return Record(
        kind="bench",
        subject=subject,
        settings={**settings},
        metrics={"time_us": 1.0},
        environment=Environment.here(),
    )


@pytest.mark.parametrize(
    ("subject", "settings", "name"),
    [
        ("linear_packed", {"variant": "cuda_wgmma_fp8"}, "hopper_prefill_fp8"),
        ("linear_packed", {"variant": "hopper_decode"}, "hopper_decode"),
        ("linear_packed", {"variant": "humming"}, "humming"),
        ("linear_qat", {"variant": "cuda"}, "hopper"),
        ("softmax", {"variant": "cuda"}, "cuda"),
        ("no op", {"variant": "cuda"}, "cuda"),
    ],
)
def test_a_record_has_the_name_of_today(subject: str, settings: dict[str, str], name: str) -> None:
    record = _bench(subject, **settings, workload="cuda")
    (found,) = use_current_names([record])
    assert found.settings == {"variant": name, "workload": "cuda"}
    assert found.metrics == record.metrics


def test_a_compiled_kernel_has_it_too() -> None:
    (found,) = use_current_names([_bench("grouped_linear_packed", implementation="cuda_float")])
    assert found.settings == {"implementation": "hopper_float"}


def test_no_former_name_is_taken_again() -> None:
    for op in discover().values():
        names = [each.name for each in op.implementations]
        names += [former for each in op.implementations for former in each.former_names]
        assert len(set(names)) == len(names), op.name
