"""Windows of an evaluation text."""

import gzip
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tercet.checkpoints.text_tokens import text_tokens
from tercet.errors import CheckpointError, PlanError
from tercet.evaluate.text import default_text, windows


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """One token a word; as some models', it asks for truncation and padding."""
    vocabulary = {"?": 0, **{word: i + 1 for i, word in enumerate("abcdefg")}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(4)
    made.enable_padding(length=64)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_cut_without_overlap_and_without_the_rest(name: str, tokenizer: Path) -> None:
    path = tokenizer.parent / name
    text = b"a b c d e f g a"
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert windows(path, tokenizer, 3, None).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert windows(path, tokenizer, 3, 1).tolist() == [[1, 2, 3]]
    assert windows(path, tokenizer, 8, 5).shape == (1, 8)
    with pytest.raises(CheckpointError, match="8 tokens are less than one window of 9"):
        windows(path, tokenizer, 9, None)


@pytest.mark.parametrize("name", ["text.jsonl", "text.JSONL.gz"])
def test_of_json_lines_the_documents_are_the_text(name: str, tokenizer: Path) -> None:
    """Not their keys and braces: they would be measured as text."""
    path = tokenizer.parent / name
    lines = b'\xef\xbb\xbf{"text": "a b", "id": "g"}\r\n\r\n{"text": "c d"}'
    path.write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert windows(path, tokenizer, 2, None).tolist() == [[1, 2], [3, 4]]
    path.with_name("joined.txt").write_text("a b\n\nc d")
    assert text_tokens(path, tokenizer).equal(text_tokens(path.with_name("joined.txt"), tokenizer))


def test_unreadable_text_is_refused(tokenizer: Path) -> None:
    path = tokenizer.parent / "text.txt"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(PlanError, match="cannot be read as UTF-8 text"):
        windows(path, tokenizer, 3, None)
    broken = tokenizer.parent / "text.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(PlanError, match="cannot be read as UTF-8 text"):
        windows(broken, tokenizer, 3, None)
    with pytest.raises(CheckpointError, match=r"none\.json: missing"):
        windows(path, tokenizer.parent / "none.json", 3, None)


def test_the_shipped_text_is_long_enough(tokenizer: Path) -> None:
    assert windows(default_text(), tokenizer, 1024, 16).shape == (16, 1024)
