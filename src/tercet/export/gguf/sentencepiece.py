"""tokenizer.json of a SentencePiece model as GGUF metadata: llama.cpp's tokenizer "llama".

tokenizer.json merges the two neighbours that stand first in its list of merges; llama.cpp those
that give the piece of the highest score. Both come to the same where all merges to one piece stand
together and no merge is missing: then a piece's score is how early its merges come. Runs of spaces,
which have one score in many a SentencePiece model, are tried out.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tercet.errors import UnsupportedError
from tercet.export.gguf.container import Field

_SPACE = "▁"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_Pair = tuple[str, str]
_ON_IDS = "remove tokenizer.json to export a file that runs on token ids"


def sentencepiece_fields(
    path: Path, content: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Field]:
    """The fields of a BPE with byte fallback.

    Args:
        path: of the tokenizer.json, for messages.
        content: what is in it.
        tokens: of each row of the embedding.
        types: GGUF's type of each token, as a byte-level BPE has them.

    Raises:
        UnsupportedError: llama.cpp would make other tokens of some text.
    """
    model = content["model"]
    prefixed = _prefixes(path, content)
    in_bytes = {f"<0x{value:02X}>": chr(value) for value in range(256)}
    missing = in_bytes.keys() - model["vocab"].keys()
    # Gemma has a tab of its own in the place of its byte
    lacking = [one for one in missing if not in_bytes[one].isascii() or in_bytes[one] not in tokens]
    if lacking:
        raise UnsupportedError(
            f"{path}: the tokens of {len(lacking)} of 256 bytes are missing, so that llama.cpp "
            f"would read unknown letters in another way: {_ON_IDS}"
        )
    unknown = model.get("unk_token")
    kinds = [
        _BYTE if token in in_bytes else _UNKNOWN if token == unknown else kind
        for token, kind in zip(tokens, types, strict=True)
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": _scores(path, model, tokens, kinds),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": prefixed,
    }


def _prefixes(path: Path, content: Mapping[str, Any]) -> bool:
    """Whether a space is put before a text; spaces must become "▁", and nothing else change."""
    found = [_step(step) for step in steps_of(content.get("normalizer"), "normalizers")]
    found += [_step(step) for step in steps_of(content.get("pre_tokenizer"), "pretokenizers")]
    # Gemma's splits at spaces when none is left
    steps = [step for step in found if step != "split at spaces"]
    known: dict[tuple[str, ...], bool] = {
        ("spaces",): False,
        ("prefix", "spaces"): True,
        ("spaces", "prefix"): True,
        ("prefixed spaces",): True,
    }
    if tuple(steps) not in known:
        raise UnsupportedError(
            f"{path}: its normalizer and pre_tokenizer ({', '.join(steps) or 'none'}) do more or "
            f"less than to write {_SPACE!r} for spaces and before a text, as llama.cpp does: "
            f"{_ON_IDS}"
        )
    return known[tuple(steps)]


def steps_of(described: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre_tokenizer; those of a sequence are its `parts`."""
    if not described:
        return []
    return described[parts] if described["type"] == "Sequence" else [described]


def _step(step: Mapping[str, Any]) -> str:
    space = {"String": " "}
    match step["type"]:
        case "Prepend" if step["prepend"] == _SPACE:
            return "prefix"
        case "Replace" if step["pattern"] == space and step["content"] == _SPACE:
            return "spaces"
        case "Split" if step["pattern"] == space and not step["invert"]:
            return "split at spaces"
        case "Metaspace" if step["replacement"] == _SPACE and not step.get("split", True):
            scheme = step.get("prepend_scheme", "always")
            return "spaces" if scheme == "never" else "prefixed spaces"
        case other:
            return str(other)


def _scores(
    path: Path, model: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]
) -> list[float]:
    """A score for each token, the higher the earlier it is merged."""
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(option):
            raise _other_order(path, f"{option} is {model[option]!r}")
    merges = [
        _pair(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]
    ]
    ranks: dict[_Pair, int] = {}
    first: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair, rank)
        first.setdefault("".join(pair), rank)
    for piece, (begin, end) in _scattered(merges, first).items():
        among = {"".join(pair) for pair in merges[begin : end + 1]}
        if len(set("".join(among))) > 1 or not _runs_agree(piece[0], among, ranks, first):
            raise _other_order(path, f"merges to {piece!r} do not stand together")
    whole = {token for token, kind in zip(tokens, kinds, strict=True) if _is_whole(token, kind)}
    vocabulary = model["vocab"]
    for piece in vocabulary.keys() - whole:
        for cut in range(1, len(piece)):
            pair = piece[:cut], piece[cut:]
            there = all(len(part) == 1 or part in vocabulary for part in pair)
            if there and pair not in ranks:
                raise _other_order(path, f"{pair[0]!r} and {pair[1]!r} are not merged to {piece!r}")
    return [float(-first.get(token, len(merges) + row)) for row, token in enumerate(tokens)]


def _is_whole(token: str, kind: int) -> bool:
    """Whether a token is none that merges give: it is found in a text before anything is merged."""
    # a text with spaces has none of its own that are written as spaces are
    return kind in (_CONTROL, _BYTE) or (kind == _USER_DEFINED and _SPACE not in token)


def _pair(parts: Sequence[str]) -> _Pair:
    left, right = parts
    return left, right


def _scattered(merges: Sequence[_Pair], first: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The ranks of the first and the last merge of pieces that others' stand between."""
    last = {"".join(pair): rank for rank, pair in enumerate(merges)}
    counts = Counter(map("".join, merges))
    return {
        piece: (first[piece], last[piece])
        for piece, count in counts.items()
        if last[piece] - first[piece] + 1 != count
    }


def _runs_agree(
    letter: str, products: Collection[str], ranks: Mapping[_Pair, int], first: Mapping[str, int]
) -> bool:
    """Whether runs of one letter, spaces mostly, come out alike by merges and by pieces."""
    longest = max(map(len, products))
    by_piece = {pair: first["".join(pair)] for pair in ranks}
    return all(
        _merge([letter] * count, ranks) == _merge([letter] * count, by_piece)
        for count in range(2, 3 * longest + 1)
    )


def _merge(symbols: list[str], ranks: Mapping[_Pair, int]) -> list[str]:
    """What is left when, again and again, the first of the leftmost pairs is merged."""
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not found:
            return symbols
        _, at = min(found)
        symbols = [*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :]]


def _other_order(path: Path, what: str) -> UnsupportedError:
    return UnsupportedError(f"{path}: {what}, which llama.cpp cannot follow: {_ON_IDS}")
