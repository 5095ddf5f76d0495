"""Mistakes are named before any model is opened, and nothing ends in a traceback."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tercet.cli.main as command_line
from tercet.checkpoints.packed.layout import MANIFEST_NAME
from tercet.checkpoints.seal import SEAL_NAME
from tercet.cli.options.kv_cache import KV_CACHE_DTYPES
from tercet.compress import pipeline
from tercet.errors import CheckpointError
from tercet.packed_weight.cached_rows import CACHED
from tercet.workflows.export.run import export
from tercet.workflows.speed import text_before_stop

Run = Callable[..., Any]


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise AssertionError("a model was opened")

    monkeypatch.setattr(pipeline, "open_source", fail)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("nowhere.txt", "nowhere.txt: no such file: give --calibration"), (".", "is a directory")],
)
def test_a_calibration_path_is_checked_first(
    tercet: Run, model: Path, plan: Path, tmp_path: Path, name: str, expected: str
) -> None:
    words = ["--plan", plan, "--out", tmp_path / "out", "--calibration", tmp_path / name]
    assert expected in tercet("compress", model, *words).error


@pytest.mark.usefixtures("no_model")
def test_an_output_below_a_file_is_named_first(
    tercet: Run, model: Path, plan: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    done = tercet("compress", model, "--plan", plan, "--out", tmp_path / "file" / "out")
    assert f"{tmp_path / 'file'} is a file: choose another" in done.error


@pytest.mark.usefixtures("no_model")
def test_an_output_without_permission_is_named_first(
    tercet: Run, model: Path, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # pyright: ignore[reportUnknownLambdaType]
    done = tercet("compress", model, "--plan", plan, "--out", tmp_path / "out")
    assert f"{tmp_path} cannot be written to" in done.error


@pytest.mark.parametrize("command", ["run", "eval"])
def test_an_unknown_dtype_of_the_cache_is_named_first(
    tercet: Run, tmp_path: Path, command: str
) -> None:
    words = ["--prompt", "x"] if command == "run" else []
    done = tercet(command, tmp_path / "nowhere", *words, "--kv-cache-dtype", "int3")
    assert done.code == 2
    assert "unknown dtype of a key-value cache 'int3'" in done.error
    assert KV_CACHE_DTYPES == CACHED


def test_an_existing_output_of_an_export_is_named_first(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="exists already"):
        export(tmp_path / "nowhere", "gguf", tmp_path)


def test_rules_that_match_nothing_are_said(compress: Run, plan: Path) -> None:
    text = plan.read_text().replace(
        "rules:", 'rules:\n  - {match: "*.expert.*", format: int4-g64, algorithm: rtn}'
    )
    plan.write_text(text + '  - {match: "*.mlp.up_proj", keep: true}\n')
    done = compress()
    assert done.code == 0
    lines = [line for line in done.err.splitlines() if line.startswith("rules that match nothing")]
    assert lines == [
        "rules that match nothing (or nothing that an earlier rule leaves): "
        "*.expert.*, *.mlp.up_proj"
    ]


def test_rules_that_all_match_are_not_mentioned(compress: Run) -> None:
    done = compress("--json")
    assert json.loads(done.out)["idle_rules"] == []
    assert "rules that match nothing" not in done.err


def test_ctrl_c_says_one_line(tmp_path: Path) -> None:
    # a shell has its background jobs ignore SIGINT, and so all that they start
    code = f"""
import signal
import sys
import tercet.cli.run
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(**_):
    Path({str(tmp_path / "ready")!r}).touch()
    import time
    time.sleep(600)
tercet.cli.run.GenerationSettings = wait
sys.argv = ["tercet", "run", "nowhere", "--prompt", "a"]
from tercet.cli.main import main
main()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "ready").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_an_interrupted_compression_can_go_on(
    tercet: Run, compress: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "open_source", interrupt)
    done = compress()
    assert done.code == 130
    assert done.err.endswith("interrupted; what is on disk is kept: go on with --resume\n")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "ask for the permission"),
        (errno.ENOSPC, "free some space"),
        (errno.EISDIR, "give a file, not a directory"),
    ],
)
def test_an_error_of_the_system_names_its_file(
    tercet: Run, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def fail() -> NoReturn:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr(command_line, "app", fail)
    assert tercet("run").error.startswith(f"error: /some/file: {os.strerror(number)}: {advice}")


def test_an_error_that_names_no_file_is_not_hidden(
    tercet: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> NoReturn:
        raise OSError("a fault of our own")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(OSError, match="of our own"):
        tercet("run")


def test_what_can_be_resumed_is_told_so_when_interrupted() -> None:
    places = {name: place.split(":") for name, (place, _) in command_line.COMMANDS.items()}
    commands = {name: getattr(import_module(file), it) for name, (file, it) in places.items()}
    with_resume = {name for name, it in commands.items() if "resume" in signature(it).parameters}
    assert with_resume == set(command_line._RESUMABLE)  # pyright: ignore[reportPrivateUsage]


def test_a_prompt_that_is_no_unicode_is_named_first(tercet: Run, tmp_path: Path) -> None:
    error = tercet("run", tmp_path / "nowhere", "--prompt", os.fsdecode(b"bad \xff")).error
    assert "the prompt is not Unicode text: character 5 is" in error
    assert "give it as UTF-8" in error


def test_inspect_sees_a_flipped_byte_and_a_missing_manifest(
    compress: Run, tercet: Run, tmp_path: Path
) -> None:
    compress()
    out = tmp_path / "out"
    assert tercet("inspect", out).code == 0
    tokenizer = out / "tokenizer.json"
    before = tokenizer.read_bytes()
    tokenizer.write_bytes(before.replace(b"w7", b"w8", 1))
    assert "tokenizer.json: sha256" in tercet("inspect", out).error
    tokenizer.write_bytes(before)
    (out / MANIFEST_NAME).unlink()
    assert f"{MANIFEST_NAME}: missing" in tercet("inspect", out).error
    (out / SEAL_NAME).unlink()
    done = tercet("inspect", out)
    assert done.code == 1
    assert f"no {MANIFEST_NAME}, so nothing vouches for these bytes" in done.err


def test_a_partial_directory_is_an_interrupted_write(
    compress: Run, tercet: Run, tmp_path: Path
) -> None:
    compress()
    partial = (tmp_path / "out").rename(tmp_path / "out.partial")
    (partial / SEAL_NAME).unlink()
    for command in (["inspect"], ["run", "--prompt", "w5"]):
        done = tercet(command[0], partial, *command[1:])
        assert "out.partial: an interrupted write, not whole yet: go on with" in done.error
        done = tercet(command[0], tmp_path / "out", *command[1:])
        assert "no such directory" in done.error
        assert "an interrupted write lies in" in done.error


def test_a_speed_runs_text_ends_where_the_model_stopped(model: Path) -> None:
    # 2 is the model's end-of-text token; a speed run goes on behind it
    assert text_before_stop([5, 9, 2, 7, 8], model) == text_before_stop([5, 9], model) == "w5 w9"
    assert text_before_stop([5, 9, 7], model) == "w5 w9 w7"
