"""Long axes: those whose sums leave 16 bits, tables whose positions do."""

from pathlib import Path

import pytest

from tercet.harness.check.run import check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.workloads.drawn import Drawn
from tercet.harness.workloads.long import draw_long
from tercet.ops.discover import find

ELEMENTS = 1 << 18


def drawn_of(name: str, rows: int | None = None) -> tuple[Drawn, ...]:
    return draw_long(find(name), 3, ELEMENTS, rows)


@pytest.mark.parametrize("element", ["int8", "fp8_e4m3"])
def test_a_short_row_whose_codes_add_up_beyond_int16(element: str) -> None:
    op = find("quantize_activation")
    short = [
        each
        for each in drawn_of("quantize_activation")
        if 128 < each.workload.sizes["K"] <= 512 and each.workload.options["element"] == element
    ]
    sums = [int(op.reference(**each.arguments(op, 0))[2].abs().max()) for each in short]
    if element == "int8":
        assert min(sums) < 1 << 15 < max(sums)
    assert min(sums) > 255


@pytest.mark.parametrize("name", ["append_kv", "paged_attention"])
@pytest.mark.parametrize("rows", [None, 520])
def test_a_table_reaches_positions_beyond_int16(name: str, rows: int | None) -> None:
    op, far = find(name), list[int]()
    for each in drawn_of(name, rows):
        sizes = each.workload.sizes
        if sizes["T"] * sizes["S"] <= 1 << 15:
            continue
        assert each.kind == "normal"
        made = each.arguments(op, 0)
        far.append(int(made["lengths"].max()))
        assert 0 <= int(made["blocks"][0, -1]) < sizes["P"] or far[-1] < 1 << 15
        assert len(made.get("cos", range(far[-1]))) >= min(far[-1], sizes["T"] * sizes["S"])
    assert any(each > 1 << 15 for each in far)


def test_positions_that_are_kept_in_int16(tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(
        "import torch\n"
        "from tercet.ops.paged_attention import torch_path\n"
        "def forward(q, keys, values, blocks, lengths, *rest):\n"
        "    return torch_path.forward(q, keys, values, blocks, lengths.short().int(), *rest)\n"
    )
    report = check(
        find("paged_attention"), candidate=candidate_from(path), device="cpu", isolated=False,
        integration=False, cases=(), drawn=1, seed=3, until_red=True,
    )  # fmt: skip
    assert {each.check for each in report.faults} & {"forward", "stale"}
    assert all("T=65" in each.case for each in report.faults)
