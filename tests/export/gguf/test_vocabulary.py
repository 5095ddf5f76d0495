"""llama.cpp makes the same tokens of a text, or the tokenizer is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.gguf import TARGET, vocabulary
from tercet.export.gguf.client import text_tokens
from tercet.export.gguf.vocabulary import _GPT_4O, _LLAMA3, _QWEN2, _TEKKEN

TEXTS = [
    "Hello world, it's 12345 o'clock!\n\n  naïve café 日本語 ",
    "   tabs\t\tand 3.14159, I'LL don't  WE'RE\r\n\r\n x = {'a': [1, 2]}  ",
    "<|go|>user\nHi there<|go|>",
    "über-größe ½ ٣٤٥ 👍🏽 ...  end\n",
]


CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog don't 1234 12 3", "it's   \n\n it's"]


def split_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


SPLITTERS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": lambda: split_by(_QWEN2),
    "dbrx": lambda: split_by(_LLAMA3),
    "llama-bpe": lambda: split_by(_LLAMA3),
    "gpt-4o": lambda: split_by(_GPT_4O),
    "tekken": lambda: split_by(_TEKKEN),
}
# a word that is a token is not merged together
WHOLE_WORDS = ("llama-bpe", "tekken")


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
    tokenizer = tokenizer_of(SPLITTERS[name](), name in WHOLE_WORDS)
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
    assert list(TARGET.differences(checkpoint, out)) == []


def test_padding_on_the_left_is_no_token_at_the_start(make: Any, tmp_path: Path) -> None:
    checkpoint = make(vocab_size=400)
    tokenizer = tokenizer_of(SPLITTERS["qwen2"](), False)
    begin = tokenizer.token_to_id("<|go|>")
    tokenizer.enable_padding(direction="left", length=8, pad_id=begin, pad_token="<|go|>")
    with_tokenizer(checkpoint, tokenizer)
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    fields = GGUFReader(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.bos_token_id"].contents() == begin
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False


def test_other_tokens_are_a_difference(
    make: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make(vocab_size=400)
    with_tokenizer(checkpoint, tokenizer_of(SPLITTERS["qwen2"](), False))
    monkeypatch.setattr(vocabulary, "_splitter", lambda *_: "gpt-2")
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    (found,) = TARGET.differences(checkpoint, tmp_path / "a.gguf")
    assert found.startswith("llama.cpp makes ")


def test_other_tokenizers_are_refused(make: Any, tmp_path: Path) -> None:
    checkpoint = make(vocab_size=400)
    with_tokenizer(checkpoint, tokenizer_of(pre_tokenizers.Whitespace(), False))
    with pytest.raises(UnsupportedError, match=r"pre_tokenizer \(Whitespace\) is none of"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    with_tokenizer(checkpoint, tokenizer_of(SPLITTERS["qwen2"](), True))
    with pytest.raises(UnsupportedError, match=r"ignore_merges is True, but llama.cpp's 'qwen2'"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    with_tokenizer(checkpoint, tokenizer_of(SPLITTERS["tekken"](), False))
    with pytest.raises(UnsupportedError, match=r"ignore_merges is False, but llama.cpp's 'tekken'"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(
        str(checkpoint.directory / "tokenizer.json")
    )
    with pytest.raises(UnsupportedError, match="a WordPiece tokenizer; Tercet writes BPE"):
        TARGET.write(checkpoint, tmp_path / "a.gguf")
    small = make()
    with_tokenizer(small, tokenizer_of(SPLITTERS["qwen2"](), False))
    with pytest.raises(CheckpointError, match="but the embedding has 96 rows"):
        TARGET.write(small, tmp_path / "a.gguf")


SPACE = "▁"
PIECES = [*(f"<0x{value:02X}>" for value in range(256)), "<unk>", "<|go|>", "<|end|>"]


def sentencepiece_of(
    normalizer: Any, pre_tokenizer: Any, without: frozenset[str] = frozenset()
) -> Tokenizer:
    """As converted from SentencePiece: every two pieces that give a piece, by the piece's score.

    Runs of spaces have one score, the lowest, as in Llama 2's and Mistral's.
    """
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.Replace(" ", SPACE)
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    learned.train_from_iterator(CORPUS * 4, trainer)
    found = sorted(learned.get_vocab(), key=learned.get_vocab().__getitem__)
    words = [*(word for word in found if len(word.strip(SPACE)) or len(word) == 1)]
    runs = [SPACE * count for count in (2, 3, 4, 5, 6)]
    all_of_them = [piece for piece in (*PIECES, *words, *runs) if piece not in without]
    vocabulary = {piece: index for index, piece in enumerate(all_of_them)}
    scores = {word: -place for place, word in enumerate(words)} | dict.fromkeys(runs, -1000)
    merges = [
        (scores[piece], len(piece[:cut]), (piece[:cut], piece[cut:]))
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    ordered = [pair for *_, pair in sorted(merges, reverse=True)]
    tokenizer = Tokenizer(models.BPE(vocabulary, ordered, unk_token="<unk>", byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(piece) for piece in PIECES[256:]])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    return tokenizer


def spaced(split: bool = False, scheme: str = "always") -> Any:
    return pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)


SPELLINGS: dict[str, tuple[Any, Any, bool]] = {
    "llama": (
        normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
        None,
        True,
    ),
    "gemma": (
        normalizers.Replace(" ", SPACE),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        False,
    ),
    "metaspace": (None, spaced(), True),
    "no prefix": (None, spaced(scheme="never"), False),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_sentencepiece_is_read_alike(name: str, make: Any, client: Any, tmp_path: Path) -> None:
    normalizer, pre_tokenizer, prefixed = SPELLINGS[name]
    # Gemma has a tab, and no byte of it
    without = frozenset(["<0x09>"] if name == "gemma" else [])
    tokenizer = sentencepiece_of(normalizer, pre_tokenizer, without)
    assert "\t" in tokenizer.get_vocab()
    checkpoint = make(vocab_size=450)
    with_tokenizer(checkpoint, tokenizer)
    out = tmp_path / "a.gguf"
    TARGET.write(checkpoint, out)
    fields = GGUFReader(out).fields
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"].contents() is prefixed
    texts = [*TEXTS, *CORPUS, *(f"a{' ' * count}b" for count in range(2, 20)), f"{SPACE * 9}x", ""]
    for text in texts:
        # Metaspace puts no space before one that is there, llama.cpp does
        begins = any(part.startswith((" ", SPACE)) for part in text.split("\n\n"))
        if name != "metaspace" or not begins:
            assert text_tokens(TARGET, out, text) == tokenizer.encode(text).ids, text


def test_sentencepiece_that_llama_cpp_would_read_otherwise(make: Any, tmp_path: Path) -> None:
    checkpoint = make(vocab_size=450)
    normalizer, pre_tokenizer, _ = SPELLINGS["llama"]
    content = json.loads(sentencepiece_of(normalizer, pre_tokenizer).to_str())

    def refusal(**changed: Any) -> str:
        model = {**content["model"], **changed.pop("model", {})}
        path = checkpoint.directory / "tokenizer.json"
        path.write_text(json.dumps({**content, **changed, "model": model}))
        with pytest.raises(UnsupportedError) as found:
            TARGET.write(checkpoint, tmp_path / "a.gguf")
        return str(found.value)

    merges = content["model"]["merges"]
    assert "are not merged to" in refusal(model={"merges": merges[:40] + merges[41:]})
    late = [SPACE, SPACE * 2]
    early = [late, *(pair for pair in merges if pair != late)]
    assert f"merges to {SPACE * 3!r} do not stand together" in refusal(model={"merges": early})
    # four spaces are two and two by this list, and three and one by the scores of its pieces
    first = [late, [SPACE, SPACE], [SPACE * 2, SPACE]]
    runs = [pair for pair in merges if set("".join(pair)) == {SPACE} and pair not in first]
    words = [pair for pair in merges if pair not in first and pair not in runs]
    assert "do not stand together" in refusal(model={"merges": [*words, *first, *runs]})
    assert "ignore_merges is True" in refusal(model={"ignore_merges": True})
    fewer = {key: value for key, value in content["model"]["vocab"].items() if key != "<0x07>"}
    assert "the tokens of 1 of 256 bytes are missing" in refusal(model={"vocab": fewer})
    assert "(Lowercase) do more or less" in refusal(normalizer={"type": "Lowercase"})
    assert "(none) do more or less" in refusal(normalizer=None)
    metaspace = {
        "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True,
    }  # fmt: skip
    assert "(Metaspace) do more" in refusal(normalizer=None, pre_tokenizer=metaspace)
