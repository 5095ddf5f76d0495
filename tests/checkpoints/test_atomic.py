import errno
import resource
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tercet.checkpoints.atomic import atomic_directory, grow_files, write_atomic
from tercet.errors import CheckpointError


def fill_disk(path: Path) -> None:
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_bytes_and_callables_replace_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_atomic(target, b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    write_atomic(target, lambda path: save_file({"w": torch.arange(3.0)}, path))
    assert load_file(target)["w"].tolist() == [0.0, 1.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_files_are_as_readable_as_ordinary_ones(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    write_atomic(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("broken")])
def test_a_failure_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, failure: BaseException
) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")

    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise failure

    with pytest.raises(type(failure)):
        write_atomic(target, write)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_says_what_was_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"a\.bin: the disk is full: needs more, free are"):
        write_atomic(tmp_path / "a.bin", fill_disk)
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: fill_disk_bytes(data))
    with pytest.raises(CheckpointError, match="the disk is full: needs 1,234 bytes, free are"):
        write_atomic(tmp_path / "a.bin", bytes(1234))
    assert list(tmp_path.iterdir()) == []


def fill_disk_bytes(data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_under_safetensors_is_told_too(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with pytest.raises(CheckpointError, match="the disk is full"):
        write_atomic(tmp_path / "a.safetensors", write)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EFBIG, "File too large"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
    ],
)
def test_a_limit_on_file_sizes_is_no_full_disk(tmp_path: Path, error: Exception) -> None:
    def write(path: Path) -> None:
        raise error

    with pytest.raises(CheckpointError, match=r"limit on file sizes \(ulimit -f.*raise the limit"):
        write_atomic(tmp_path / "a.safetensors", write)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_grow_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    grow_files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "a").stat().st_size + 1, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            grow_files(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_other_errors_of_the_disk_pass_unchanged(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        write_atomic(tmp_path / "a", write)


def test_directory_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with atomic_directory(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "w").write_bytes(b"1")
        assert not target.exists()
    assert (target / "sub" / "w").read_bytes() == b"1"
    assert list(target.parent.iterdir()) == [target]


def fail_inside(target: Path) -> None:
    with atomic_directory(target, replace=True) as temporary:
        (temporary / "new").write_bytes(b"new")
        raise ZeroDivisionError


def write_while_another_does(target: Path) -> None:
    with atomic_directory(target) as ours:
        (ours / "a").write_bytes(b"ours")
        target.mkdir()
        (target / "a").write_bytes(b"theirs")


def test_directory_in_the_way_is_kept_unless_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_bytes(b"old")
    with (
        pytest.raises(CheckpointError, match=r"model exists already: .* or remove it first"),
        atomic_directory(target),
    ):
        pass
    with pytest.raises(ZeroDivisionError):
        fail_inside(target)
    assert [path.name for path in target.iterdir()] == ["old"]
    with atomic_directory(target, replace=True) as temporary:
        (temporary / "new").write_bytes(b"new")
    assert [path.name for path in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]


def test_directory_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with pytest.raises(CheckpointError, match="exists already"):
        write_while_another_does(target)
    assert (target / "a").read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [target]
