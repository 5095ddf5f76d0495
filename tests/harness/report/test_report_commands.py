"""shapes, regress and report from the command line: output, JSON, files, exit codes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tercet.cli.kernel.regress import regress_command
from tercet.cli.kernel.report import report_command
from tercet.cli.kernel.shapes import shapes_command
from tercet.errors import TercetError
from tercet.records import Environment, Record, append

app = typer.Typer(pretty_exceptions_enable=False)
app.command(name="shapes")(shapes_command)
app.command(name="regress")(regress_command)
app.command(name="report")(report_command)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, TercetError):
        raise result.exception
    return result


def write(path: Path, time_us: float) -> str:
    record = Record(
        kind="bench",
        subject="rms_norm",
        settings={"variant": "triton", "direction": "forward", "workload": "norm"},
        metrics={"time_us": time_us},
        environment=Environment.here("NVIDIA H200"),
    )
    append(path, [record])
    return str(path)


def test_shapes_as_json() -> None:
    result = run("shapes", "rms_norm", "--model", "llama-3-8b", "--tokens", "7", "--json")
    assert result.exit_code == 0
    (first, *_) = json.loads(result.stdout)
    assert first["sizes"] == {"M": 7, "N": 4096}
    assert first["elements"] == 7 * 4096
    assert "N=4096" in run("shapes", "rms_norm", "--model", "llama-3-8b").stdout


def test_regress_fails_and_writes_its_reports(tmp_path: Path) -> None:
    base, slow = write(tmp_path / "a.jsonl", 100), write(tmp_path / "b.jsonl", 108)
    files = ("--markdown", str(tmp_path / "r.md"), "--html", str(tmp_path / "r.html"))
    result = run("regress", "--baseline", base, "--current", slow, "--json", *files)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["passed"]
    assert [change["verdict"] for change in found["changes"]] == ["regression"]
    assert "+8.0 %" in (tmp_path / "r.md").read_text()
    assert "+8.0 %" in (tmp_path / "r.html").read_text()
    assert run("regress", "--baseline", base, "--current", base, "--again", base).exit_code == 0
    assert "regression" in run("regress", "--baseline", base, "--current", slow).stdout


def test_regress_asks_for_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(TercetError, match="give --current"):
        run("regress")
    with pytest.raises(TercetError, match=r"gone\.jsonl is no file of records"):
        run("regress", "--baseline", "gone.jsonl", "--current", "gone.jsonl")


def test_report_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("report", write(tmp_path / "a.jsonl", 100), "-o", str(page), "--json")
    assert json.loads(result.stdout)["timed"] == 1
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(TercetError, match="is no file"):
        run("report", str(tmp_path / "gone.jsonl"))
