"""The report: self-contained, every number from a record, tables that sort and filter."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tercet.errors import CheckpointError
from tercet.harness.regress.noise import noise_of
from tercet.harness.regress.report import Change, RegressReport
from tercet.harness.report import regress_markdown, write_regress, write_report
from tercet.harness.report.plot import log_scale, ticks
from tercet.harness.report.script import SCRIPT
from tercet.records import Environment, Outcome, Record

HERE = Environment.here("NVIDIA H200")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
NODE = shutil.which("node")
VOID = {"meta", "input", "line", "path", "br"}


def bench(op: str, shape: str, time_us: float, revision: str = "aaaa", **settings: str) -> Record:
    size = 2**28
    seconds = time_us / 1e6
    return Record(
        kind="bench",
        subject=op,
        settings={
            "variant": "triton",
            "direction": "forward",
            "workload": shape,
            "sizes": "M=16384 N=4096",
            "dtype": "bfloat16",
            "options": "",
            "cache": "cold",
            "launch": "graph",
            "binds": "memory",
            "revision": revision,
            **settings,
        },
        metrics={
            "time_us": time_us,
            "time_us_low": 0.99 * time_us,
            "time_us_high": 1.01 * time_us,
            "flops": float(size),
            "bytes": float(size),
            "bytes_per_second": size / seconds,
            "flops_per_second": size / seconds,
            "roofline_fraction": 62.7 / time_us,
        },
        environment=HERE,
        time=f"2026-11-2{int(revision[0], 16) % 10}T00:00:00+00:00",
    )


def records() -> list[Record]:
    refused = Record(
        kind="bench",
        subject="softmax",
        settings={"variant": "triton", "direction": "forward", "workload": "rows of <131072>"},
        outcome=Outcome.WRONG,
        reason="worst 7x the limit & more",
        environment=HERE,
    )
    compiled = Record(
        kind="compile",
        subject="softmax",
        settings={"implementation": "triton", "kernel": "_forward", "target": "sm_90"},
        metrics={"registers": 64, "spills": 4, "shared_bytes": 2048, "wgmma": 8},
        environment=HERE,
    )
    ceiling = Record(
        kind="ceiling",
        subject="nvidia-h200",
        metrics={"copy_bytes_per_second": 4.28e12, "bf16_flops_per_second": 664e12},
        environment=HERE,
    )
    return [
        ceiling,
        refused,
        compiled,
        bench("rms_norm", "8b", 70.0, "1111"),
        bench("rms_norm", "8b", 66.0, "2222"),
        bench("rms_norm", "70b", 132.0, "2222"),
        bench("rms_norm", "8b", 90.0, "2222", variant="liger"),
        bench("softmax", "8b", 9.5, "2222"),
        bench("softmax", "8b", 100.0, "2222", launch="eager"),
    ]


class Page(HTMLParser):
    """Checks that tags are balanced; collects cells, titles and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.titles: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "title":
            self.titles.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "title":
            self.titles[-1] += data


@pytest.fixture
def page(tmp_path: Path) -> Path:
    summary = write_report(records(), tmp_path / "report.html")
    assert (summary.timed, summary.refused, summary.compiled) == (5, 1, 1)
    assert summary.devices == ("NVIDIA H200",)
    return tmp_path / "report.html"


def test_the_page_is_whole_and_loads_nothing(page: Path) -> None:
    text = page.read_text()
    assert Page(text).addresses == []
    assert "http" not in text.replace("http-equiv", "")
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text


def test_tables_show_the_latest_of_each_row(page: Path) -> None:
    rows = Page(page.read_text()).rows
    (now,) = (row for row in rows if row[:2] == ["rms_norm", "triton"] and row[8] == "8b")
    bandwidth = f"{2**28 / 66e-6 / 1e12:.2f}"
    assert now[2:8] == ["66", "1.0", "95%", "forward", bandwidth, "4.1"]
    (refused,) = (row for row in rows if "wrong" in row)
    assert refused[1:] == [
        "triton forward rows of <131072>",
        "wrong",
        "worst 7x the limit & more",
    ]
    (compiled,) = (row for row in rows if "sm_90" in row)
    assert compiled[4:] == ["64", "4", "2,048", "wgmma 8"]


def test_the_roofline_has_a_mark_for_each_steady_row_and_the_ceilings(page: Path) -> None:
    first, second = re.findall("<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert first.count('class="mark own') == 3
    assert first.count('class="mark peer') == 1
    assert "copy 4.28 TB/s" in first
    assert second.count('class="mark') == 3
    assert "1111 2026-11-21" in second
    titles = Page(first).titles
    assert any(title.startswith("rms_norm triton forward 70b") for title in titles)
    assert any("132 us, 2.03 TB/s, 48% of the roofline" in title for title in titles)


def test_marks_lie_under_their_roof_at_their_share(page: Path) -> None:
    """In a log-log plot, 48 % of the roof is 0.32 of a decade below it."""
    svg = re.findall("<svg.*?</svg>", page.read_text(), re.DOTALL)[0]
    found = {
        name: float(y)
        for y, name in re.findall(
            r'cy="([\d.]+)" r="5.5" tabindex="0"><title>(\w+ \w+ \w+ \w+)', svg
        )
    }
    decade = {
        label: float(y)
        for y, label in re.findall(r'text x="76" y="([\d.]+)" text-anchor="end">([\d.]+)<', svg)
    }
    per_decade = decade["1"] - decade["10"]
    apart = found["rms_norm triton forward 70b"] - found["rms_norm triton forward 8b"]
    assert apart == pytest.approx(per_decade * 0.30103, abs=0.3)


def test_scales_hold_their_values() -> None:
    scale = log_scale([0.3, 700.0], 0, 100)
    assert scale.low < 0.3 < 700 < scale.high
    assert scale(scale.low) == pytest.approx(0)
    assert [tick for tick in ticks(scale) if 50 < tick < 1000] == [100]


def test_a_page_of_no_records_says_so(tmp_path: Path) -> None:
    write_report([], tmp_path / "report.html")
    assert "Nothing timed." in (tmp_path / "report.html").read_text()


def regressions() -> RegressReport:
    return RegressReport(
        device="NVIDIA H200",
        before="aaaa",
        after="bbbb",
        noise={"graph": noise_of([], 2)},
        changes=(
            Change(op="rope", row="8b", metric="time_us", before=10, after=9.9, verdict="same"),
            Change(
                op="softmax",
                row="8b | q",
                metric="time_us",
                before=10,
                after=10.8,
                limit=1.02,
                verdict="regression",
            ),
        ),
        notes=("timed once",),
    )


def test_regressions_as_markdown_and_html(tmp_path: Path) -> None:
    text = regress_markdown(regressions())
    assert "| regression | softmax | 8b \\| q | time_us | 10 | 10.8 | +8.0 % |" in text
    assert text.startswith("## Regression\n")
    assert "rope" not in text
    assert "- timed once" in text
    write_regress(regressions(), tmp_path / "regress.html")
    rows = Page((tmp_path / "regress.html").read_text()).rows
    assert [row[0] for row in rows] == ["verdict", "regression", "same"]
    assert rows[1][6] == "+8.0 %"
    write_regress(regressions(), tmp_path / "regress.html")
    (records := tmp_path / "records.jsonl").write_text("{}")
    with pytest.raises(CheckpointError, match="is no HTML page"):
        write_regress(regressions(), records)
    assert records.read_text() == "{}"


def test_a_page_is_written_through_links_and_to_pipes(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real.html", "link.html", "pipe"))
    real.touch()
    link.symlink_to(real)
    write_regress(regressions(), link)
    assert link.is_symlink()
    assert real.read_text().startswith("<!doctype html>")
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        write_regress(regressions(), pipe)
        assert read.result(600) == real.read_text()
    assert pipe.is_fifo()


@pytest.mark.skipif(NODE is None, reason="no node")
def test_the_script_orders_and_filters() -> None:
    asked = """
    const order = [['10', '9'], ['', '1'], ['a2', 'a10'], ['-1', '1']];
    console.log(JSON.stringify([
      order.map(([a, b]) => Math.sign(compareKeys(a, b))),
      matchesAll('rms_norm 8b Forward', 'forward 8B'), matchesAll('rms_norm 8b', '70b 8b')]));
    """
    done = subprocess.run(
        [str(NODE), "-e", SCRIPT + asked], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[1, 1, -1, -1], True, False]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_works_in_a_browser(page: Path, width: int) -> None:
    """Headless Chromium sorts every column, filters, touches a mark, and finds nothing too wide."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--window-size={width},900",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"{page.as_uri()}#selftest",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = re.search(r'data-selftest="([^"]*)"', done.stdout)
    assert found is not None
    assert found[1] == "ok"
