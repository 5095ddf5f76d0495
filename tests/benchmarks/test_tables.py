"""Tables of the kernel benchmarks say what the records say."""

from collections.abc import Callable
from types import ModuleType

import pytest

from tercet.ops.discover import find
from tercet.records import Environment, Outcome, Record

HERE = Environment.here("NVIDIA H200")


@pytest.fixture
def tables(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/kernels/tables.py")


@pytest.fixture
def goals(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/kernels/goals.py")


def bench(variant: str, time_us: float, **settings: str) -> Record:
    return Record(
        kind="bench",
        subject="rms_norm",
        settings={
            "variant": variant,
            "direction": "forward",
            "workload": "llama-3-8b norm",
            "sizes": "M=16384 N=4096",
            "dtype": "bfloat16",
            "options": "",
            "cache": "cold",
            "launch": "graph",
            "binds": "memory",
            "revision": "0123456789abcdef",
            **settings,
        },
        metrics={
            "time_us": time_us,
            "bytes_per_second": 2.7e8 / time_us * 1e6,
            "flops_per_second": 1e9 / time_us * 1e6,
            "roofline_fraction": 63 / time_us,
        },
        environment=HERE,
        time="2026-11-21T10:00:00+00:00",
    )


def test_a_table_shows_the_cold_row_beside_its_peers(tables: ModuleType) -> None:
    records = [
        bench("triton", 999.0),
        bench("triton", 70.0),
        bench("triton", 40.0, cache="warm"),
        bench("triton", 80.0, launch="eager"),
        bench("liger", 77.0),
        bench("eager", 140.0),
        bench("triton", 90.0, direction="backward"),
    ]
    caption, _, head, rule, *rows, _, link = tables.table(find("rms_norm"), records).splitlines()
    assert link == (
        "All rows: [nvidia-h200.md](../../../../benchmarks/kernels/nvidia-h200.md#rms_norm)."
    )
    assert caption.startswith("NVIDIA H200, 2026-11-21, revision 0123456789ab; cold cache.")
    assert head.endswith("| of the limit | eager, us | liger, us |")
    assert rule.count("---") == 8
    start = "| llama-3-8b norm | M=16384 N=4096 |"
    assert rows == [
        f"{start} forward | 70 | 3.86 TB/s | 90% | 140 (2.00x) | 77 (1.10x) |",
        f"{start} backward | 90 | 3.00 TB/s | 70% | - | - |",
    ]


def test_compute_bound_rows_show_operations(tables: ModuleType) -> None:
    text = tables.table(find("rms_norm"), [bench("triton", 10.0, binds="compute")])
    assert "| 10 | 100 TFLOP/s | 630% |" in text


def test_nothing_is_shown_of_refused_or_other_rows(tables: ModuleType) -> None:
    refused = bench("triton", 70.0).model_copy(
        update={"outcome": Outcome.WRONG, "reason": "red", "metrics": {}}
    )
    assert tables.table(find("rms_norm"), [refused]) == "Not measured yet."
    assert tables.table(find("linear_packed"), [bench("triton", 70.0)]) == "Not measured yet."


def test_times_at_a_shared_clock_are_not_beside_times_alone(tables: ModuleType) -> None:
    records = [
        bench("triton", 80.0),
        bench("eager", 150.0),
        bench("triton", 70.0, pace="alone"),
        bench("eager", 175.0, pace="alone"),
    ]
    caption, _, _, _, *rows, _, _ = tables.table(find("rms_norm"), records).splitlines()
    assert "cold cache. 1 rows timed alone, each call at a clock of its own." in caption
    assert [row.split("|")[-2].strip() for row in rows] == ["150 (1.88x)", "175 (2.50x)"]


def test_a_readme_shows_eight_rows_and_the_page_every_row(tables: ModuleType) -> None:
    records = [
        bench("triton", 10.0, sizes=f"M={rows} N={width}", options=options)
        for options, counts in (("", (1, 2, 4, 8, 16)), ("residual=True", (1, 4)))
        for rows in counts
        for width in (4096, 8192)
    ]
    shown = [line for line in tables.table(find("rms_norm"), records).splitlines() if "M=" in line]
    sizes = [line.split("|")[2].strip() for line in shown]
    # the most measured kind by the widest of four counts, then the other, then what is left
    assert sizes == [
        *(f"M={rows} N=8192" for rows in (1, 2, 4, 16)),
        *(f"M={rows} N=8192 residual=True" for rows in (1, 4)),
        "M=1 N=4096",
        "M=2 N=4096",
    ]
    ((path, page),) = tables.devices(records).items()
    assert path.name == "nvidia-h200.md"
    assert sum("M=" in line for line in page.splitlines()) == len(records)
    assert "\n## rms_norm\n" in page


def product(variant: str, time_us: float, tokens: int, n: int, **settings: str) -> Record:
    made = bench(variant, time_us, sizes=f"M={tokens} N={n} K=4096", **settings)
    options = "scheme=ternary-channel activation=int8 codes=True"
    settings = {**made.settings, "options": options, "workload": f"{n} {tokens}"}
    return made.model_copy(update={"subject": "linear_packed", "settings": settings})


def test_a_goal_counts_the_rows_that_keep_it(goals: ModuleType) -> None:
    rows = [
        *(product("read only", 10.0, 1, n) for n in (4096, 14336)),
        product("hopper_decode", 10.8, 1, 4096),
        product("hopper_decode", 12.5, 1, 14336),
        # the implementation that selection takes, not the fastest
        product("triton", 9.0, 1, 14336),
        product("hopper_decode", 12.0, 8, 4096),
        product("humming", 24.0, 8, 4096),
        product("hopper_decode", 20.0, 8, 14336),
        product("humming", 10.0, 8, 14336),
    ]
    lines = goals.table(rows).splitlines()
    assert lines[2].endswith("| 1 of 2 | 1.08 to 1.25 | 1.16 |")
    (humming,) = (line for line in lines if "ahead of Humming" in line)
    assert humming.endswith("| 1 of 2 | 0.50 to 2.00 | 1.00 (goal 1.60) |")
    (flat,) = (line for line in lines if "M = 8 at most 1.15 of M = 1" in line)
    assert flat.endswith("| 1 of 2 | 1.11 to 1.60 | 1.33 |")
    # two were timed on one call: the one that selection takes was 12.5 / 9 of the other
    assert lines[-1].endswith("| 0 of 1 | 1.39 to 1.39 | 1.39 |")
    assert "| not measured | | |" in lines[3]


def test_a_goal_takes_times_of_one_pace(goals: ModuleType) -> None:
    rows = [
        product("hopper_prefill", 10.0, 4096, 14336),
        product("eager", 19.0, 4096, 14336),
        product("uncompressed", 19.5, 4096, 14336),
        product("hopper_prefill", 9.0, 4096, 14336, pace="alone"),
        product("eager", 20.0, 4096, 14336, pace="alone"),
    ]
    lines = goals.table(rows).splitlines()
    twice = [line for line in lines if "ternary, int8 codes, M = 4096" in line]
    assert twice[0].endswith("bf16 of the same numbers | 1 of 1 | 2.22 to 2.22 | 2.22 |")
    assert twice[1].endswith("bf16 of the uncompressed weight | not measured | | |")
    (every, _) = (line for line in lines if line.startswith("| every call"))
    assert every.endswith("| 1 of 1 | 2.22 to 2.22 | 2.22 |")
