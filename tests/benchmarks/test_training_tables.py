"""The tables of benchmarks/training/README.md say what its records say."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tercet.records import Environment, Outcome, Record, append


@pytest.fixture
def tables(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/tables.py")


def step(mode: str, time: str, **metrics: float) -> Record:
    return Record(
        kind="training step",
        subject="linear_qat",
        settings={"sizes": "M=8 N=4 K=2", "mode": mode},
        metrics=metrics,
        outcome=Outcome.OK if metrics else Outcome.WRONG,
        reason=None if metrics else "off by 0.2",
        environment=Environment.here("NVIDIA H200"),
        time=time,
    )


def test_the_newest_record_of_a_mode_counts_and_what_is_wrong_has_no_time(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = {"relative_error": 0.0123, "ratio_to_bf16": 0.5, "clock_mhz": 1700.0}
    records = [
        step("ours", "2026-11-21T10:00:00", time_us=900.0, **good),
        step("bf16", "2026-11-21T10:00:00", time_us=1000.0, **{**good, "ratio_to_bf16": 1.0}),
        step("ours", "2026-11-22T10:00:00", time_us=500.0, **good),
        step("theirs", "2026-11-22T10:00:00"),
    ]
    append(tmp_path / "gpu.jsonl", records)
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    title, _, *_, first, second, third = tables.table().splitlines()
    assert title == "NVIDIA H200, M=8 N=4 K=2, 2026-11-21 to 2026-11-22"
    assert first == "| ours | 0.500 | 0.500 | 1.23% | 1700 |"
    assert second == "| bf16 | 1.000 | 1.000 | 1.23% | 1700 |"
    assert third == "| theirs | wrong: off by 0.2 | - | - | - |"


def test_a_whole_step_has_a_table_of_its_own(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"forward_ms": 5.04, "backward_ms": 9.0, "optimizer_ms": 1.0, "clock_mhz": 1500.0}
    given = {"kind": "whole training step", "subject": "layers"}
    settings = {"layers": 2, "tokens": 8}
    slow = {"tokens_per_s": 500.0, "step_ms": 16.0, "peak_bytes": 2.5e9, **parts}
    fast = {"tokens_per_s": 750.0, "step_ms": 10.66, "peak_bytes": 2e9, "codes_ms": 0.5, **parts}
    append(
        tmp_path / "gpu.jsonl",
        [
            step("layer", "2026-11-21T10:00:00", time_us=1.0, relative_error=0.1),
            *(
                step(mode, "2026-11-21T10:00:00", **metrics).model_copy(
                    update={**given, "settings": {**settings, "mode": mode}}
                )
                for mode, metrics in (("bf16", slow), ("qat", fast))
            ),
        ],
    )
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    title, _, _, _, first, second = tables.whole().splitlines()
    assert title == "NVIDIA H200, 2 of layers, 8 tokens a step, 2026-11-21"
    assert first == "| qat | 750 | 1.50 | 10.7 | 0.5 + 5.0 + 9.0 + 1.0 | 2.00 | 1500 |"
    assert second == "| bf16 | 500 | 1.00 | 16.0 | 0.0 + 5.0 + 9.0 + 1.0 | 2.50 | 1500 |"
    (tmp_path / "README.md").write_text(
        "a\n<!-- table -->\n<!-- end -->\nb\n<!-- whole step -->\n<!-- end -->\nc"
        "<!-- curves -->\n<!-- end --><!-- devices -->\n<!-- end -->"
    )
    page = tables.pages()[tmp_path / "README.md"]
    assert page.index("| layer |") < page.index("\nb\n") < page.index("| qat |") < page.index("\nc")


def curve(mode: str, seed: int, last: float, held: float) -> Record:
    return step(mode, "2026-11-22T10:00:00", last_loss=last, held_out_loss=held).model_copy(
        update={
            "kind": "loss curve",
            "subject": "small",
            "settings": {"mode": mode, "steps": 300, "tokens": 8, "seed": seed},
        }
    )


def test_curves_are_within_noise_where_the_error_of_seeds_covers_the_difference(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, codes = (6.0, 6.3, 6.6), (6.1, 6.4, 6.7)
    records = [
        *(curve("values", seed, loss, loss / 10) for seed, loss in enumerate(values)),
        *(curve("codes", seed, loss, loss / 10 + 0.1) for seed, loss in enumerate(codes)),
    ]
    append(tmp_path / "gpu.jsonl", records)
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    title, _, _, _, *rows = tables.curves().splitlines()
    assert title == "NVIDIA H200, small, 300 steps of 8 tokens, 2026-11-22"
    # stdev 0.3 / sqrt 3
    assert rows == [
        "| last 30 steps | values | 6.0000 | 6.3000 | 6.6000 | 6.3000 | - | - | - |",
        "| last 30 steps | codes | 6.1000 | 6.4000 | 6.7000 | 6.4000 | +0.1000 | 0.1732 | yes |",
        "| held out | values | 0.6000 | 0.6300 | 0.6600 | 0.6300 | - | - | - |",
        "| held out | codes | 0.7100 | 0.7400 | 0.7700 | 0.7400 | +0.1100 | 0.0173 | no |",
    ]


@pytest.mark.parametrize(
    ("more", "how"),
    [({}, "eager"), ({"compiled": False}, "eager"), ({"compiled": True}, "compiled")],
)
def test_devices_are_compared_with_one(
    more, how: str, tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"loss_000": 8.0, "loss_001": 4.0, "tokens_per_s": 100.0, "peak_bytes": 2e9}
    two = {**one, "loss_001": 4.1, "tokens_per_s": 190.0, "gathered_bytes": 4e6, "bf16_bytes": 3e7}
    common = {"kind": "training on several devices", "subject": "layers"}
    append(
        tmp_path / "gpu.jsonl",
        [
            step("", "2026-11-22T10:00:00", **metrics).model_copy(
                update={
                    **common,
                    "settings": {
                        "devices": count,
                        "layers": 2,
                        "tokens": 8,
                        "keep_codes": kept,
                        **more,
                    },
                }
            )
            for count, kept, metrics in (
                (2, True, {**two, "tokens_per_s": 195.0}),
                (2, False, two),
                (1, False, one),
            )
        ],
    )
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    title, _, _, _, *rows = tables.devices().splitlines()
    assert title == f"NVIDIA H200, 2 of layers, 8 tokens a step, {how}, 2026-11-22"
    assert rows == [
        "| 1 | 100 | 1.00 | 4.0000 | 0.00% | - | - | 2.00 |",
        "| 2 | 190 | 1.90 | 4.1000 | 2.50% | 2.00 | 7.50 | 2.00 |",
        "| 2, codes kept | 195 | 1.95 | 4.1000 | 2.50% | 2.00 | 7.50 | 2.00 |",
    ]
