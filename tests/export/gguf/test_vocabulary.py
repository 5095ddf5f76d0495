"""llama.cpp makes the same tokens of a text, or the tokenizer is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.gguf import TARGET
from tercet.export.gguf.client import text_tokens
from tercet.export.gguf.vocabulary import _LLAMA3, _QWEN2

TEXTS = [
    "Hello world, it's 12345 o'clock!\n\n  naïve café 日本語 ",
    "   tabs\t\tand 3.14159, I'LL don't  WE'RE\r\n\r\n x = {'a': [1, 2]}  ",
    "<|go|>user\nHi there<|go|>",
    "über-größe ½ ٣٤٥ 👍🏽 ...  end\n",
]


CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog don't 1234 12 3", "it's   \n\n it's"]


SPLITTERS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "dbrx": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
SPLITTERS["llama-bpe"] = SPLITTERS["dbrx"]


def tokenizer_of(splitter: Any, whole_words: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken("<|go|>"), AddedToken("<|end|>")])
    return tokenizer


def with_tokenizer(checkpoint: PackedCheckpoint, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(checkpoint.directory / "tokenizer.json"))
    config = {"bos_token": "<|go|>", "eos_token": "<|end|>", "chat_template": "{{ messages }}!"}
    (checkpoint.directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", SPLITTERS)
def test_llama_cpp_tokenizes_alike(name: str, make: Any, client: Any, tmp_path: Path) -> None:
    checkpoint = make(vocab_size=400)
    tokenizer = tokenizer_of(SPLITTERS[name](), name == "llama-bpe")
    with_tokenizer(checkpoint, tokenizer)
    out = tmp_path / "a.gguf"
    TARGET.write(checkpoint, out)
    fields = GGUFReader(out).fields
    assert fields["tokenizer.ggml.pre"].contents() == name
    assert fields["tokenizer.chat_template"].contents() == "{{ messages }}!"
    assert fields["tokenizer.ggml.tokens"].contents()[398] == "[PAD398]"
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tokenizer.token_to_id("<|end|>")
    for text in TEXTS:
        assert text_tokens(TARGET, out, text) == tokenizer.encode(text).ids, text


def test_other_tokenizers_are_refused(make: Any, tmp_path: Path) -> None:
    checkpoint = make(vocab_size=400)
    with_tokenizer(checkpoint, tokenizer_of(pre_tokenizers.Whitespace(), False))
    with pytest.raises(UnsupportedError, match=r"pre_tokenizer \(Whitespace\) is none of"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    with_tokenizer(checkpoint, tokenizer_of(SPLITTERS["qwen2"](), True))
    with pytest.raises(UnsupportedError, match=r"ignore_merges is True, but llama.cpp's 'qwen2'"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(
        str(checkpoint.directory / "tokenizer.json")
    )
    with pytest.raises(UnsupportedError, match="a WordPiece tokenizer; Tercet writes byte-level"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    small = make()
    with_tokenizer(small, tokenizer_of(SPLITTERS["qwen2"](), False))
    with pytest.raises(CheckpointError, match="but the embedding has 96 rows"):
        TARGET.write(small, tmp_path / "a.gguf")
