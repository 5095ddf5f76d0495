import json
from math import inf, isnan
from pathlib import Path

import pytest
from pydantic import ValidationError

from tercet.errors import CheckpointError
from tercet.records import (
    Environment,
    Outcome,
    Record,
    append,
    check_appendable,
    load,
    peak_resident_bytes,
)


def record(**changes: object) -> Record:
    content = {"kind": "evaluation", "subject": "m", "metrics": {"perplexity": 12.5}}
    return Record.model_validate({**content, "environment": Environment.here(), **changes})


def test_append_adds_and_load_gives_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    first, second = record(), record(subject="n", settings={"windows": 3, "text": None})
    append(path, [first])
    before = path.read_text()
    append(path, [second])
    assert path.read_text().startswith(before)
    assert load(path) == [first, second]


def test_a_file_that_an_editor_saved_keeps_every_record(tmp_path: Path) -> None:
    """It has no end of its last line, or an empty line more, or those of Windows."""
    path, one = tmp_path / "records.jsonl", record(subject="runs/a\x85b\u2028c")
    append(path, [one])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip() + b"\r\n\r\n")
    assert load(path) == [one]
    path.write_bytes(path.read_bytes().rstrip())
    check_appendable(path)
    append(path, [record(), one])
    assert load(path) == [one, record(), one]
    assert b"\n\n" not in path.read_bytes()


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.FAILED])
def test_fast_but_wrong_cannot_be_said(outcome: Outcome) -> None:
    with pytest.raises(ValidationError, match="has a reason and no metrics"):
        record(outcome=outcome, reason="off by 2")
    with pytest.raises(ValidationError, match="has a reason and no metrics"):
        record(outcome=outcome, metrics={})
    assert record(outcome=outcome, metrics={}, reason="off by 2").metrics == {}


def test_good_without_numbers_is_refused() -> None:
    with pytest.raises(ValidationError, match="an OK record has metrics"):
        record(metrics={})


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="speed"):
        record(speed=3)


def test_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append(path, [record(), record()])
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CheckpointError, match=r"records\.jsonl:2: not a record"):
        load(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"kind": 3}', ":1: not a record: kind: "),
        (b"words", ":1: not a record: Invalid JSON"),
        (b"\xff\xfe", ": no file of records, which is UTF-8 text"),
    ],
)
def test_a_bad_record_is_one_line_without_a_url(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(line)
    with pytest.raises(CheckpointError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}{said}")
    assert "http" not in str(error.value)
    assert "\n" not in str(error.value)


def test_environment_of_this_machine() -> None:
    here = Environment.here(accelerator="none")
    assert here.cores >= 1
    assert here.memory_bytes > 2**28
    assert {"tercet", "torch", "transformers"} <= set(here.libraries)
    assert here == Environment.model_validate_json(here.model_dump_json())


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_resident_bytes()
    held = bytearray(b"x") * (before + 50_000_000)
    assert peak_resident_bytes() >= len(held)


def test_a_file_that_takes_no_records_is_named(tmp_path: Path) -> None:
    new = tmp_path / "below" / "records.jsonl"
    check_appendable(new)
    assert not new.exists()
    append(new, [record()])
    check_appendable(new)
    assert load(new) == [record()]
    text = tmp_path / "text.txt"
    text.write_text("of the user's\n")
    with pytest.raises(CheckpointError, match=r"text.txt:1: not a record"):
        check_appendable(text)
    with pytest.raises(IsADirectoryError) as raised:
        check_appendable(tmp_path)
    assert raised.value.filename == str(tmp_path)
    with pytest.raises(OSError, match="No space left on device") as full:
        append(Path("/dev/full"), [record()])
    assert full.value.filename == "/dev/full"


def test_a_value_beyond_all_numbers_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    metrics = {"perplexity": float("inf"), "low": float("-inf"), "kl": float("nan"), "size": 1.5}
    append(path, [record(metrics=metrics)])
    stored = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert stored["metrics"]["perplexity"] == "Infinity"
    (found,) = load(path)
    assert isnan(found.metrics.pop("kl"))
    assert found.metrics == {"perplexity": inf, "low": -inf, "size": 1.5}
