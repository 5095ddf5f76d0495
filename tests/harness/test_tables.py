"""Tables in the ops' READMEs come from committed records, and are up to date."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tercet.kernel.select import find
from tercet.records import Environment, Outcome, Record

ROOT = Path(__file__).parents[2]
HERE = Environment.here("NVIDIA H200")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = ROOT / "benchmarks" / "kernels" / "tables.py"
    spec = importlib.util.spec_from_file_location("kernel_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_every_readme_is_up_to_date(tables: ModuleType) -> None:
    records = [record for record in tables.committed() if record.kind == "bench"]
    for path, text in tables.readmes(records).items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path} is out of date: run python benchmarks/kernels/tables.py"
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
    caption, _, head, rule, *rows = tables.table(find("rms_norm"), records).splitlines()
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


def test_only_the_place_between_the_marks_changes(tables: ModuleType) -> None:
    text = "a\n<!-- table -->\nold\n<!-- end -->\nb\n"
    assert tables.filled(text, "new") == "a\n<!-- table -->\nnew\n<!-- end -->\nb\n"
    assert tables.filled("no place\n", "new") == "no place\n"
