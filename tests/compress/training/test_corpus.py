"""Corpus: files are what their names say, and text is what a tokenizer takes."""

import gzip
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from tercet.compress.training.corpus import Corpus
from tercet.errors import PlanError


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"?": 0, "one": 1, "two": 2, "three": 3}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def read(path: Path, tokenizer: Path) -> list[list[int]]:
    return [chunk.tolist() for chunk in Corpus([str(path)], tokenizer, end=9).chunks()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.jsonl", [[1, 2, 9], [3, 9]]), ("A.JSONL", [[1, 2, 9], [3, 9]]), ("a.Jsonl.GZ", None)],
)
def test_a_name_is_read_in_any_case(
    name: str, expected: list[list[int]] | None, tmp_path: Path, tokenizer: Path
) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("one two", "three"))
    data = lines.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if expected is None else data)
    assert read(tmp_path / name, tokenizer) == (expected or [[1, 2, 9], [3, 9]])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_mark_of_the_byte_order_is_no_text(name: str, tmp_path: Path, tokenizer: Path) -> None:
    text = "one two" if name == "a.txt" else '{"text": "one two"}'
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert read(tmp_path / name, tokenizer) == [[1, 2, 9]]


@pytest.mark.parametrize("name", ["rows.json", "rows.csv", "notes.md", "rows"])
def test_a_file_of_another_kind_is_no_plain_text(
    name: str, tmp_path: Path, tokenizer: Path
) -> None:
    (tmp_path / name).write_text('[{"text": "one"}]')
    with pytest.raises(PlanError, match=r"a file's name says what it holds: \.txt, .*rename it"):
        read(tmp_path / name, tokenizer)


def test_half_a_character_is_named_with_its_line(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two \\ud800"}\n')
    with pytest.raises(PlanError, match=r"a\.jsonl, line 2: text holds '\\ud800', half of a char"):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"id": 3, "messages": [{"role": "user", "content": "one"}]}', "the keys id, messages"),
        ('{"text": ["one"]}', "text of type list"),
        ('"one"', "a str"),
        ("{}", r"the keys \(none\)"),
    ],
)
def test_a_line_that_is_no_document_is_named_with_what_it_is(
    line: str, found: str, tmp_path: Path, tokenizer: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'\r\n{{"text": "one"}}\r\n\n{line}\n')
    with pytest.raises(PlanError, match=rf"a\.jsonl, line 4: no JSON object .* but {found}: write"):
        read(path, tokenizer)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_no_more_lines_are_read_than_are_needed(name: str, tmp_path: Path, tokenizer: Path) -> None:
    """Of a file that is larger than memory, too."""
    lines = b'{"text": "one two"}\n' * 256 + b"\xff\n"
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    corpus = Corpus([str(tmp_path / name)], tokenizer, end=9)
    assert [chunk.tolist() for chunk in corpus.chunks(5)] == [[1, 2, 9], [1, 2]]
    with pytest.raises(PlanError, match="cannot be read as UTF-8 text"):
        list(corpus.chunks())


def test_a_folder_that_is_named_like_a_file_is_a_folder(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "data" / "a.txt").mkdir(parents=True)
    (tmp_path / "data" / "a.txt" / "b.txt").write_text("two")
    assert read(tmp_path / "data", tokenizer) == [[2, 9]]


def test_padding_is_refused_as_no_text(tmp_path: Path, tokenizer: Path) -> None:
    path, ids = tmp_path / "a.safetensors", torch.tensor([[1, 2, 3], [1, 0, 0]])
    save_file({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, path)
    assert read(path, tokenizer) == [[1, 2, 3, 1, 0, 0]]
    save_file({"input_ids": ids, "attention_mask": (ids > 0).long()}, path)
    with pytest.raises(PlanError, match="attention_mask leaves out 2 tokens"):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": ["one", "two"]}, r"hf:some, row 1: the column text holds a list, no string"),
        ({"words": "one"}, r"hf:some, row 1: columns are words: one must be text"),
    ],
)
def test_a_data_set_of_the_hub_without_texts(
    row: dict[str, Any], message: str, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets: Any = ModuleType("datasets")
    datasets.__spec__ = ModuleSpec("datasets", None)
    datasets.load_dataset = lambda *_, **__: [{"text": "one two"}, row]
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    with pytest.raises(PlanError, match=message):
        list(Corpus(["hf:some"], tokenizer, end=9).chunks())
