"""Tuned tables: the nearest shape, the default, forcing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tercet.kernel import tuned

DEFAULT = {"BLOCK": 64, "num_warps": 4}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "cpu.json"
    monkeypatch.setattr(tuned, "table_path", lambda op, device: path)
    monkeypatch.setattr(tuned, "device_name", lambda: "cpu")
    tuned.forget()
    yield path
    tuned.forget()


def entry(m: int, block: int, direction: str = "forward") -> dict[str, object]:
    return {
        "implementation": "triton",
        "direction": direction,
        "sizes": {"M": m},
        "configuration": {"BLOCK": block},
    }


def test_without_a_table_the_default(table: Path) -> None:
    assert not table.exists()
    assert tuned.configuration("op", "triton", {"M": 3}, DEFAULT) == DEFAULT


def test_the_nearest_shape_wins_and_the_default_fills_in(table: Path) -> None:
    table.write_text(json.dumps([entry(16, 1), entry(1024, 2), entry(64, 3, "backward")]))
    for m, block in ((1, 1), (100, 1), (200, 2), (10**6, 2)):
        found = tuned.configuration("op", "triton", {"M": m}, DEFAULT)
        assert found == {"BLOCK": block, "num_warps": 4}, m
    assert tuned.configuration("op", "triton", {"M": 1}, DEFAULT, "backward")["BLOCK"] == 3
    assert tuned.configuration("op", "gluon", {"M": 1}, DEFAULT) == DEFAULT


def test_forced_is_forced_for_one_direction_only(table: Path) -> None:
    table.write_text(json.dumps([entry(16, 1)]))
    with tuned.force("op", "triton", "forward", {"BLOCK": 7}) as asked:
        assert tuned.configuration("op", "triton", {"M": 16}, DEFAULT)["BLOCK"] == 7
        assert tuned.configuration("op", "triton", {"M": 16}, DEFAULT)["BLOCK"] == 7
        assert tuned.configuration("op", "triton", {"M": 16}, DEFAULT, "backward") == DEFAULT
    assert tuned.configuration("op", "triton", {"M": 16}, DEFAULT)["BLOCK"] == 1
    assert asked == [{"M": 16}]


def test_another_devices_tables_are_asked_in_their_block_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "table_path", lambda op, device: tmp_path / f"{device}.json")
    monkeypatch.setattr(tuned, "device_name", lambda: "cpu")
    tuned.forget()
    for device, block in (("cpu", 1), ("gpu", 2)):
        (tmp_path / f"{device}.json").write_text(json.dumps([entry(16, block)]))

    def block() -> int:
        return tuned.configuration("op", "triton", {"M": 16}, DEFAULT)["BLOCK"]

    assert block() == 1
    with tuned.tables_of("gpu"):
        assert block() == 2
        with tuned.tables_of("none"):
            assert block() == 64
        assert block() == 2
    assert block() == 1
    tuned.forget()


def test_a_gpu_without_a_table_is_launched_by_that_of_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "table_path", lambda op, device: tmp_path / f"{device}.json")
    monkeypatch.setattr(tuned, "device_name", lambda: "nvidia-h100")
    monkeypatch.setattr(tuned.torch.cuda, "is_available", lambda: True)
    (tmp_path / "nvidia-h200.json").write_text(json.dumps([entry(16, 5)]))

    def block(capability: tuple[int, int]) -> int:
        tuned.forget()
        monkeypatch.setattr(tuned.torch.cuda, "get_device_capability", lambda: capability)
        return tuned.configuration("op", "triton", {"M": 16}, DEFAULT)["BLOCK"]

    assert block((9, 0)) == 5
    assert block((8, 0)) == 64
    # the tuner adds to the GPU's own table alone
    assert tuned.table("op", "nvidia-h100") == ()
    (tmp_path / "nvidia-h100.json").write_text(json.dumps([entry(16, 6)]))
    assert block((9, 0)) == 6
    tuned.forget()
