"""`tercet kernel bench` and `tune`: words to workloads, results to tables, JSON and exit codes."""

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from tercet.cli.kernel import bench as bench_verb
from tercet.cli.kernel import tune as tune_verb
from tercet.cli.kernel.calls import parse_directions, select_workloads
from tercet.errors import UnsupportedError
from tercet.harness.bench import direction as bench_direction
from tercet.harness.timing import ceilings, clock
from tercet.harness.timing.device_state import DeviceState
from tercet.ops.rms_norm.op import OP
from tercet.records import Outcome, Record, append, load


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> typer.Typer:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._SIDE, "cpu", 64)
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 16 << 10)
    monkeypatch.setattr(clock, "_CROSS_US", 2000.0)
    monkeypatch.setattr(bench_verb, "find", lambda name: OP)
    monkeypatch.setattr(tune_verb, "find", lambda name: OP)
    app = typer.Typer()
    app.command("bench")(bench_verb.bench_command)
    app.command("tune")(tune_verb.tune_command)
    return app


_BENCH = ("bench", "rms_norm", "--shape", "M=8,N=16", "--dtype", "float32", "--device", "cpu",
          "--seconds", "0.02", "--direction", "forward")  # fmt: skip


def test_json_holds_the_report_and_out_the_records(run: typer.Typer, tmp_path: Path):
    out = tmp_path / "cpu.jsonl"
    words = (*_BENCH, "--option", "residual=True", "--no-baselines", "--json", "--out", str(out))
    done = CliRunner().invoke(run, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert {record["settings"]["options"] for record in report["records"]} == {"residual=True"}
    kept = load(out)
    assert [record.model_dump(mode="json") for record in kept] == report["records"]
    assert len(kept) == 2


def test_one_kind_of_time_and_records_before_the_end(run: typer.Typer, tmp_path: Path):
    out, shape = tmp_path / "cpu.jsonl", ("--shape", "M=8,N=32")
    words = (*_BENCH, *shape, "--no-baselines", "--cache", "warm", "--out", str(out))
    kept = list[int]()

    def counting(path: Path, records: list[Record]) -> None:
        kept.append(len(records))
        append(path, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_verb, "append", counting)
        done = CliRunner().invoke(run, words)
    assert done.exit_code == 0, done.output
    assert kept == [1, 1]
    assert [(r.settings["cache"], r.settings["sizes"]) for r in load(out)] == [
        ("warm", "M=8 N=16"),
        ("warm", "M=8 N=32"),
    ]


def test_the_table_shows_times_and_what_is_missing(run: typer.Typer):
    done = CliRunner().invoke(run, _BENCH)
    assert done.exit_code == 0, done.output
    for words in ("forward eager cold", "torch", "roofline", "1.00x", "pip install liger-kernel"):
        assert words in done.stdout


@pytest.mark.parametrize(("settle", "told"), [("0", True), ("0.001", False)])
def test_a_shared_low_clock_is_told(
    run: typer.Typer, monkeypatch: pytest.MonkeyPatch, settle: str, told: bool
):
    low = DeviceState(clock_mhz=900, memory_clock_mhz=1, power_w=700, temperature_c=60, reasons=0x4)
    monkeypatch.setattr(bench_direction, "device_state", lambda device: low)
    done = CliRunner().invoke(run, (*_BENCH, "--no-baselines", "--settle", settle))
    assert done.exit_code == 0, done.output
    assert ("--settle 0.25 times each at its own" in done.output) is told


def test_a_wrong_candidate_ends_with_one(run: typer.Typer, tmp_path: Path):
    path = tmp_path / "doubled.py"
    path.write_text(
        "import tercet.ops.rms_norm.torch_path as right\n"
        "def forward(*a):\n y, t, r = right.forward(*a)\n return 2 * y, t, r\n"
    )
    done = CliRunner().invoke(run, (*_BENCH, "--no-baselines", "--candidate", str(path)))
    assert done.exit_code == 1
    assert "doubled forward" in done.stdout
    assert str(Outcome.WRONG) in done.stdout


def test_tune_says_what_it_needs(run: typer.Typer):
    words = ("tune", "rms_norm", "--shape", "M=8,N=16", "--device", "cpu")
    done = CliRunner().invoke(run, words)
    assert isinstance(done.exception, UnsupportedError)
    assert "runs on cuda" in str(done.exception)


def test_models_give_their_own_calls():
    calls = select_workloads(OP, None, ["llama-3-8b"], dtype=None, options=None, tokens=64)
    assert {(call.sizes["M"], call.sizes["N"]) for call in calls} == {(64, 4096)}
    assert {call.dtype for call in calls} == {torch.bfloat16}
    (half, *_) = select_workloads(OP, None, ["llama-3-8b"], dtype="float16", options=None)
    assert half.dtype == torch.float16


def test_bad_words_are_refused():
    with pytest.raises(UnsupportedError, match="nothing to run"):
        select_workloads(OP, None, None, dtype=None, options=None)
    with pytest.raises(UnsupportedError, match="also needs a size for N"):
        select_workloads(OP, ["M=4"], None, dtype=None, options=None)
    with pytest.raises(UnsupportedError, match="allowed are forward and backward"):
        parse_directions(["sideways"])
