"""Where `tercet compress` and `tercet import` write: nothing of the user's is lost on the way."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.checkpoints.seal import SEAL_NAME

Run = Callable[..., "object"]


def listing(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"/"
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_the_source_is_never_the_output(
    tercet: Run, model: Path, plan: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    before = listing(tmp_path)
    for out in (model, model / "int4", tmp_path):
        done = tercet("compress", model, "--plan", plan, "--out", out, *more)
        assert "the model that is read" in done.error
        assert listing(tmp_path) == before


def test_overwrite_keeps_what_is_no_checkpoint(compress: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "photo.jpg").write_text("mine")
    before = listing(tmp_path)
    assert "--overwrite replaces no other directory" in compress("--overwrite").error
    assert listing(tmp_path) == before


def test_a_link_leads_to_the_result(compress: Run, tercet: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    beside = set(os.listdir(tmp_path))
    assert compress().code == 0
    assert compress("--overwrite").code == 0
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / SEAL_NAME).is_file()
    assert set(os.listdir(tmp_path)) == beside
    assert tercet("inspect", tmp_path / "out", "--verify").code == 0
    # an import follows it, too
    assert tercet("export", tmp_path / "out", "--to", "mlx", "--out", tmp_path / "mlx").code == 0
    words = ("import", tmp_path / "mlx", "--out", tmp_path / "out")
    assert "already exists" in tercet(*words).error
    assert tercet(*words, "--overwrite").code == 0
    assert (tmp_path / "out").is_symlink()
    assert set(os.listdir(tmp_path)) == beside | {"mlx"}
    assert "contains the model" in tercet("import", tmp_path / "mlx", "--out", tmp_path).error


def test_a_second_run_to_the_same_place_is_told_at_once(compress: Run, tmp_path: Path) -> None:
    with (tmp_path / ".out.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for more in ((), ("--overwrite",), ("--resume",)):
            assert "out: another run is writing there: wait until it ends" in compress(*more).error
    assert compress().code == 0
    assert not (tmp_path / ".out.lock").exists()
    assert "lock" not in (tmp_path / "out" / SEAL_NAME).read_text()


def test_modes_follow_the_umask(compress: Run, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert compress().code == 0
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}


def test_the_current_directory_has_a_name(
    compress: Run, tercet: Run, model: Path, plan: Path, calibration: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(model)
    source = set(os.listdir(model))
    for reference, code in ((".", 0), (f"../{model.name}", 2)):
        done = tercet("compress", reference, "--plan", plan, "--calibration", calibration)
        assert done.code == code
    assert "already exists" in done.err
    made = tmp_path / f"{model.name}-{plan.stem}"
    assert compress().code == 0
    assert listing(made).keys() == listing(tmp_path / "out").keys()
    assert set(os.listdir(model)) == source
    monkeypatch.chdir(made)
    assert tercet("inspect", ".", "--verify").code == 0
    assert tercet("export", ".", "--to", "mlx", "--out", "../mlx").code == 0
    assert tercet("run", ".", "--prompt", "w3 w4", "--max-tokens", 2).code == 0
    assert "an empty path" in tercet("compress", "", "--plan", plan).error
