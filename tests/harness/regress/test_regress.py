"""Comparing records: times, memory, compiled resources, devices."""

import random

import pytest

from tercet.errors import UnsupportedError
from tercet.harness.regress.compare import compare
from tercet.records import Environment, Outcome, Record

HERE = Environment.here("NVIDIA H200")


def bench(
    shape: str,
    time_us: float,
    *,
    variant: str = "triton",
    memory: float = 0.0,
    launch: str = "graph",
    device: str = "NVIDIA H200",
    revision: str = "abc",
) -> Record:
    return Record(
        kind="bench",
        subject="rms_norm",
        settings={
            "variant": variant,
            "direction": "forward",
            "workload": shape,
            "sizes": "M=16384 N=4096",
            "dtype": "bfloat16",
            "options": "",
            "cache": "cold",
            "launch": launch,
            "binds": "memory",
            "revision": revision,
        },
        metrics={
            "time_us": time_us,
            "time_us_low": time_us * 0.997,
            "time_us_high": time_us * 1.003,
            "peak_memory_bytes": memory,
        },
        environment=HERE.model_copy(update={"accelerator": device}),
    )


def compiled(registers: float, *, spills: float = 0, shared: float = 0, wgmma: float = 8) -> Record:
    return Record(
        kind="compile",
        subject="rms_norm",
        settings={"implementation": "triton", "kernel": "_forward", "target": "sm_90"},
        metrics={
            "registers": registers,
            "spills": spills,
            "shared_bytes": shared,
            "wgmma": wgmma,
        },
        environment=HERE.model_copy(update={"accelerator": None}),
    )


def a_run(seed: int, slow: dict[str, float] | None = None) -> list[Record]:
    """300 rows with 0.6 % of noise."""
    noise = random.Random(seed)
    return [
        bench(name, 100 * (1 + i / 50) * (slow or {}).get(name, 1.0) * noise.gauss(1, 0.006))
        for i, name in enumerate(f"shape {i}" for i in range(300))
    ]


def test_the_same_version_measured_ten_times_flags_nothing() -> None:
    for seed in range(10):
        report = compare(a_run(3 * seed), a_run(3 * seed + 1), a_run(3 * seed + 2))
        assert report.passed
        assert len(report.of("same")) == 600
        assert report.noise["graph"].spread == pytest.approx(0.006 * 2**0.5, rel=0.25)


def test_one_slow_row_of_300_is_found() -> None:
    for seed in range(10):
        current = a_run(3 * seed + 1, {"shape 123": 1.08})
        report = compare(a_run(3 * seed), current, a_run(3 * seed + 2))
        (found,) = report.of("regression")
        assert "shape 123" in found.row
        assert found.metric == "time_us"
        assert "shape 123" in str(found)


def test_without_a_second_run_five_percent_is_the_least() -> None:
    base = [bench("one", 100), bench("two", 100)]
    report = compare(base, [bench("one", 104), bench("two", 106)])
    assert [change.row.split()[2] for change in report.of("regression")] == ["two"]
    assert "second run" in report.notes[0]


def test_other_libraries_show_the_noise_and_are_no_regression() -> None:
    def peers(*times: float) -> list[Record]:
        names = ("one", "two", "three")
        return [bench(name, us, variant="liger") for name, us in zip(names, times, strict=True)]

    base = [bench("one", 100), *peers(100, 100, 100)]
    report = compare(base, [bench("one", 103), *peers(100, 100, 150)])
    assert report.passed
    assert report.noise["graph"].largest == pytest.approx(0.405, abs=0.001)
    assert not any("liger" in change.row for change in report.changes)
    quiet = compare(base, [bench("one", 103), *peers(100, 100, 100)])
    assert not quiet.passed
    # one row may be alike by luck
    few = compare(base[:2], [bench("one", 103), bench("one", 100, variant="liger")])
    assert few.passed
    assert "too few graph rows" in few.notes[0]


def test_noise_of_eager_launches_does_not_hide_a_graph() -> None:
    base = [bench("one", 100), bench("one", 100, launch="eager")]
    again = [bench("one", 100), bench("one", 130, launch="eager")]
    report = compare(base, [bench("one", 108), bench("one", 120, launch="eager")], again)
    (found,) = report.of("regression")
    assert found.row.endswith("graph")


def test_memory_and_compiled_resources() -> None:
    base = [bench("one", 100, memory=2**30), compiled(64), compiled(64)]
    assert compare(base, [bench("one", 100, memory=2**30 * 1.01), compiled(71)], base).passed
    more = compare(base, [bench("one", 100, memory=2**30 * 1.03), compiled(72, shared=4096)], base)
    assert [change.metric for change in more.of("regression")] == [
        "peak_memory_bytes",
        "registers",
        "shared_bytes",
    ]
    worse = compare(base, [compiled(64, spills=4, wgmma=0)])
    assert [change.metric for change in worse.of("regression")] == ["spills", "wgmma"]
    assert "no wgmma instruction is left" in str(worse.of("regression")[1])
    assert len(worse.of("missing")) == 1


def test_a_row_that_no_longer_works_is_a_regression() -> None:
    base = bench("one", 100)
    broken = base.model_copy(
        update={"outcome": Outcome.WRONG, "reason": "worst 7x the limit", "metrics": {}}
    )
    (found,) = compare([base], [broken]).of("regression")
    assert "worst 7x the limit" in found.reason


def test_a_variant_that_is_refused_breaks_each_of_its_timings() -> None:
    """What is refused has neither cache nor launch, and nothing binds it."""
    base = [bench("one", 100), bench("one", 100, launch="eager"), bench("two", 100)]
    settings = {**base[0].settings, "cache": None, "launch": None}
    del settings["binds"]
    refused = base[0].model_copy(
        update={
            "settings": settings,
            "outcome": Outcome.WRONG,
            "reason": "its check is red",
            "metrics": {},
        }
    )
    report = compare(base, [refused, bench("two", 100)])
    assert [change.reason for change in report.of("regression")] == [
        "now wrong: its check is red"
    ] * 2
    assert not report.of("missing")


def test_rows_of_another_device_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="1 rows of 'NVIDIA B200', 1 rows of 'NVIDIA H200'"):
        compare([bench("one", 100)], [bench("one", 100, device="NVIDIA B200")])


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="nothing to compare"):
        compare([bench("one", 100)], [])


def test_the_last_of_equal_rows_counts_and_revisions_are_named() -> None:
    base = [bench("one", 300, revision="old"), bench("one", 100, revision="new")]
    report = compare(base, [bench("one", 101, revision="head")], base)
    assert report.passed
    assert (report.before, report.after) == ("new and old", "head")
