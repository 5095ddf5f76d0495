"""Building native code: the cache, two processes at once, and what can go wrong."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.errors import BuildError
from tercet.kernel.jit import cpp as native


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "answer.cpp"
    file.write_text('extern "C" int answer() { return 41; }\n')
    return file


def libraries(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "build").iterdir())


def test_builds_once_and_again_when_the_source_changes(source: Path) -> None:
    assert native.build(source).answer() == 41
    (first,) = libraries(source)
    stamp = first.stat().st_mtime_ns
    assert native.build(source).answer() == 41
    assert first.stat().st_mtime_ns == stamp
    source.write_text('#include "more.hpp"\nextern "C" int answer() { return MORE; }\n')
    (source.parent / "more.hpp").write_text("#define MORE 42\n")
    assert native.build(source).answer() == 42
    (source.parent / "more.hpp").write_text("#define MORE 43\n")
    assert native.build(source).answer() == 43
    assert len(libraries(source)) == 3


def test_a_wait_is_announced(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tercet"):
        native.build(source)
        assert caplog.messages == ["compiling answer.cpp for this machine, once"]
        native.build(source)
    assert len(caplog.messages) == 1


def test_two_processes_may_build_at_once(source: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tercet.kernel.jit.cpp import build;"
        "raise SystemExit(build(Path(sys.argv[1])).answer())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(source)]
    builders = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [builder.wait(timeout=600) for builder in builders] == [41, 41]
    assert len(libraries(source)) == 1


def test_no_compiler_says_what_was_tried(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        BuildError, match=r"tried g\+\+, clang\+\+ on PATH; run `apt install g\+\+`"
    ):
        native.build(source)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="tried no-such-compiler on PATH"):
        native.build(source)


def test_a_source_that_does_not_compile_leaves_nothing(source: Path) -> None:
    source.write_text("int answer( {")
    with pytest.raises(BuildError, match=r"(?s)answer.cpp did not compile.*tried `.*-O3.*error"):
        native.build(source)
    assert libraries(source) == []


def test_a_damaged_library_is_named(source: Path) -> None:
    folder = source.parent / "cache" / "build"
    folder.mkdir(parents=True)
    compiler = native.find_compiler()
    assert compiler is not None
    library = native.library_path(source, compiler)
    library.write_bytes(b"not a library")
    with pytest.raises(BuildError, match=r"does not load: .*delete it to compile anew"):
        native.build(source)


def test_a_cache_that_cannot_be_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(source))
    with pytest.raises(BuildError, match=r"cannot write to .*set TERCET_CACHE to a directory"):
        native.build(source)
