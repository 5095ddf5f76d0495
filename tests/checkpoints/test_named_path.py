from pathlib import Path

import pytest

from tercet.checkpoints.named_path import named_path, partial_directory
from tercet.errors import CheckpointError


def test_a_path_that_ends_in_a_name_stays_as_it_is() -> None:
    for path in ("a", "a/b", "../a", "./a", "/a/b/"):
        assert named_path(path) == Path(path)


def test_other_paths_become_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    for path, real in ((".", "a"), ("./", "a"), ("b/..", "a"), ("..", "."), ("../a/.", "a")):
        assert named_path(path).resolve() == (tmp_path / real).resolve()
        assert named_path(path).name
    assert partial_directory(Path(".")) == tmp_path / "a.partial"


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(CheckpointError, match="an empty path; give the path of a directory"):
        named_path("")


def test_what_is_no_path_is_refused() -> None:
    class Model: ...

    for given, name in ((Model(), "Model"), (None, "NoneType"), (b"a", "bytes")):
        with pytest.raises(CheckpointError, match=f"a {name} in the place of a path: .* save_pre"):
            named_path(given)  # pyright: ignore[reportArgumentType]
