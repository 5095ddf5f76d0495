"""The files beside a tokenizer.json add and name tokens, as transformers reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from tercet.checkpoints.tokenizer_file import read_special_tokens, read_tokenizer
from tercet.errors import CheckpointError
from tercet.runtime.tokenizer import load_tokenizer

OWN = ("<own>", "<plain>")
TEXT = "a<own> <plain>b <end> c<turn><more>d <end><odd>. <late> <pad>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer.json of bytes, a special token and one that is not."""
    letters = sorted(ByteLevel.alphabet())
    backend = Backend(BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = Decoder()
    backend.add_tokens([AddedToken("<own>", special=True, normalized=False), AddedToken("<plain>")])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def flags(drawn: Random) -> dict[str, bool]:
    return {name: drawn.random() < 0.3 for name in ("lstrip", "rstrip", "single_word")}


def drawn_files(drawn: Random) -> dict[str, dict[str, Any]]:
    """What some such files say; special tokens as strings, or with flags."""

    def token(text: str) -> object:
        return text if drawn.random() < 0.5 else {"content": text, **flags(drawn)}

    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokens_map: dict[str, Any] = {}
    for key, texts in {
        "bos_token": ("<own>", "<turn>"),
        "eos_token": ("<end>", "<plain>"),
        "pad_token": ("<pad>",),
        "turn_token": ("<turn>",),
    }.items():
        for file in (config, tokens_map):
            if drawn.random() < 0.4:
                text = drawn.choice(texts)
                file[key] = text if key == "turn_token" or file is config else token(text)
    if drawn.random() < 0.4:
        key = drawn.choice(("extra_special_tokens", "additional_special_tokens"))
        config[key] = drawn.sample(["<more>", "<late>", "<own>"], 2)
    files = {"tokenizer_config.json": config, "special_tokens_map.json": tokens_map}
    if drawn.random() < 0.5:
        config["added_tokens_decoder"] = {
            str(260 + i): {"content": text, **flags(drawn), "special": drawn.random() < 0.7}
            for i, text in enumerate(drawn.sample(["<end>", "<turn>", "<odd>", "<own>"], 3))
        }
    elif drawn.random() < 0.6:
        files["added_tokens.json"] = {"<odd>": 259, "<end>": 258}
    return files


def write(folder: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("seed", range(40))
def test_tokens_are_those_of_transformers(seed: int, folder: Path) -> None:
    files = drawn_files(Random(seed))
    write(folder, files)
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), load_tokenizer(folder)
    expected = theirs.encode(TEXT, add_special_tokens=False)
    assert ours.encode_formatted(TEXT) == expected, files
    assert read_tokenizer(folder / "tokenizer.json").encode(TEXT).ids == expected
    assert ours.special == theirs.special_tokens_map, files
    assert ours.stop_id == theirs.eos_token_id
    assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)


def test_without_other_files_the_tokens_are_its_own(folder: Path) -> None:
    assert read_special_tokens(folder).named == {}
    known = read_tokenizer(folder / "tokenizer.json").get_added_tokens_decoder()
    assert [token.content for token in known.values()] == [*OWN]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": ["<end>"]}, "added tokens cannot be"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "cannot be"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {}}}, "KeyError.*copy the file"),
        ("added_tokens.json", {"<end>": "first"}, "added_tokens.json: its added tokens cannot"),
        ("special_tokens_map.json", [], "special_tokens_map.json: must hold a JSON object"),
    ],
)
def test_files_that_no_tokenizer_has_are_refused(
    name: str, content: object, words: str, folder: Path
) -> None:
    write(folder, {name: content})
    with pytest.raises(CheckpointError, match=words):
        load_tokenizer(folder)
