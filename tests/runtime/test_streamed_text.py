"""Streamed pieces make up the text of all ids, for each kind of decoder."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel

from tercet.runtime.detokenizer import Detokenizer
from tercet.runtime.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in (0x0A, 0x41, 0x80, 0x82, 0x98, 0x9F, 0xAC, 0xE2, 0xF0, 0xFF)]
PIECES = ["▁", "▁▁", "▁the", "▁whale", "and", "▁and", "é", "▁好", "."]
WORDS = ["the", "whale", "##s", "##ing", ".", "'", "n't", "do", "not", "[UNK]"]


def byte_level() -> Backend:
    tokens = [*sorted(ByteLevel.alphabet()), "Ġthe", "Ġ", "ðŁ", "ðŁĺ", "âĤ", "¬a"]
    backend = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece(*steps: decoders.Decoder) -> Backend:
    tokens = ["<unk>", *BYTES, *PIECES]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(list(steps))
    return backend


def wordpiece(decoder: decoders.Decoder | None) -> Backend:
    vocabulary = {token: index for index, token in enumerate(WORDS)}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    if decoder is not None:
        backend.decoder = decoder
    return backend


FALLBACK = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
KINDS = {
    "byte level": byte_level(),
    "llama": sentencepiece(*FALLBACK, decoders.Strip(" ", 1, 0)),
    "gemma": sentencepiece(*FALLBACK),
    "metaspace": sentencepiece(decoders.Metaspace()),
    "wordpiece": wordpiece(decoders.WordPiece()),
    "no decoder": wordpiece(None),
}
for _backend in KINDS.values():
    _backend.add_special_tokens(["<s>", "</s>"])
    _backend.add_tokens([AddedToken("<think>", special=False)])


def stream(backend: Backend, ids: Sequence[int]) -> str:
    detokenizer = Tokenizer(backend, None, {}).detokenizer()
    pieces = [detokenizer.push(index) for index in ids]
    return "".join([*pieces, detokenizer.flush()])


def stream_tokens(kind: str, *tokens: str) -> str:
    found = [KINDS[kind].token_to_id(token) for token in tokens]
    ids = [index for index in found if index is not None]
    assert len(ids) == len(tokens)
    return stream(KINDS[kind], ids)


def texts_without_end(backend: Backend, ids: Sequence[int]) -> list[str]:
    """The text of all ids, and where it ends within a character, that text without its end."""
    whole = backend.decode(ids)
    if not whole.endswith("\ufffd"):
        return [whole]
    tokens = [backend.id_to_token(index) for index in ids]
    seen = [i for i, token in zip(ids, tokens, strict=True) if token not in (None, "<s>", "</s>")]
    shorter = [backend.decode(seen[: len(seen) - count]) for count in (1, 2, 3)]
    return [whole.removesuffix("\ufffd"), whole.rstrip("\ufffd"), *shorter]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_pieces_make_up_the_text_of_all_ids(kind: str, data: st.DataObject) -> None:
    backend = KINDS[kind]
    # some beyond the vocabulary, as a padded embedding has them
    last = backend.get_vocab_size() + 1
    some = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=6))
    ids = data.draw(st.lists(st.sampled_from([*some, *range(last + 1)]), max_size=40))
    assert stream(backend, ids) in texts_without_end(backend, ids)


def test_the_space_after_a_special_token_or_a_broken_byte_stays() -> None:
    assert stream_tokens("llama", "▁the", "▁whale", "<s>", "▁and") == "the whale and"
    assert stream_tokens("llama", "<s>", "▁the", "</s>", "<s>", "▁and") == "the and"
    assert stream_tokens("llama", "▁the", "<0xFF>", "▁and") == "the\ufffd and"
    assert stream_tokens("wordpiece", "the", "<s>", "whale", "##s") == "the whales"


def test_a_run_of_bytes_is_read_as_the_decoder_reads_it() -> None:
    smile, euro = ("<0xF0>", "<0x9F>", "<0x98>", "<0x80>"), ("<0xE2>", "<0x82>", "<0xAC>")
    assert stream_tokens("llama", "<0xF0>", "<0x9F>", "<s>", "<0x98>", "<0x80>", "and") == "😀and"
    assert stream_tokens("llama", *euro, "<0xFF>", "and") == "\ufffd" * 4 + "and"
    assert stream_tokens("llama", "▁the", *euro, *smile) == "the€😀"
    assert stream_tokens("llama", "▁the", *euro, *smile[:2]) == "the€"


@pytest.mark.parametrize("tokens", [[b"a"], [b"\xf0"], ["é".encode()[:1], "é".encode()[1:]]])
def test_a_token_costs_the_same_at_any_place(tokens: list[bytes]) -> None:
    sizes: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        sizes.append(len(ids))
        return b"".join(tokens[index] for index in ids).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    for count in range(200):
        detokenizer.push(count % len(tokens))
    assert max(sizes) < 20
    assert len(sizes) < 300
