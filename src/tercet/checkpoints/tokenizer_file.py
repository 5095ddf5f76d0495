"""A tokenizer.json with what lies beside it, read so that it encodes a whole text and nothing more.

Other files of a tokenizer name special tokens and may add some to tokenizer.json: they are read as
transformers reads them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer

from tercet.errors import CheckpointError

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# those that every tokenizer may have, in the order that transformers adds them in
_USUAL = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """What the files beside a tokenizer.json say of tokens.

    Attributes:
        named: bos_token, eos_token and the like.
        special: the tokens of these names, and others that are special without one.
        by_id: tokens with their ids, special ones and others.
        whole: whether `by_id` is of tokenizer_config.json; else those of tokenizer.json are among
            them, which it does not list.
    """

    named: dict[str, str]
    special: tuple[AddedToken, ...]
    by_id: dict[int, AddedToken]
    whole: bool


def read_tokenizer(path: Path, model: str | None = None) -> Tokenizer:
    """Read a tokenizer.json, without the truncation and padding that it may ask for.

    transformers saves both with the tokenizer once a text was encoded with truncation=True or
    padding="max_length"; a prompt of 11 tokens would become 64 of them. Tokens that only the files
    beside it have are added.

    Args:
        path: the tokenizer.json.
        model: what the user called the model, where `path` is a copy that lies elsewhere.

    Raises:
        CheckpointError: a file is not what a tokenizer has.
    """
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except ValueError as error:
        where = path if model is None else f"{model}: tokenizer.json"
        raise CheckpointError(
            f"{where}: not a tokenizer ({error}): copy the file again from the model's source"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if more := _more_tokens(tokenizer, read_special_tokens(path.parent)):
        tokenizer.add_tokens(more)
    return tokenizer


def _more_tokens(tokenizer: Tokenizer, read: SpecialTokens) -> list[AddedToken]:
    """Those that are new, or special though tokenizer.json does not say so."""
    own = tokenizer.get_added_tokens_decoder()
    before = {repr(token) for token in own.values()}
    by_id = read.by_id if read.whole else {**read.by_id, **own}
    found = [by_id[index] for index in sorted(by_id)]
    known = {token.content for token in (*own.values(), *found)}
    for token in read.special:
        if token.content not in known:
            known.add(token.content)
            found.append(token)
    names = set(read.named.values())
    for token in found:
        token.special = token.special or token.content in names
    return [token for token in found if repr(token) not in before]


def read_special_tokens(directory: Path) -> SpecialTokens:
    """What the files of a tokenizer but tokenizer.json say; nothing where there are none.

    tokenizer_config.json goes first. Where it has no `added_tokens_decoder`, as older files,
    special_tokens_map.json goes before it, and added_tokens.json is read.

    Raises:
        CheckpointError: a file is not what a tokenizer has.
    """
    config = read_json(directory / "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        config = {**config, **read_json(directory / "special_tokens_map.json")}
    named = {key: config[key] for key in _USUAL if key in config}
    named |= {key: value for key, value in config.items() if key.endswith("_token")}
    extra: object = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    if isinstance(extra, dict):
        named |= cast(dict[str, object], extra)
    of_names = {key: token for key, value in named.items() if (token := _special(value))}
    others = cast(list[object], extra) if isinstance(extra, list) else []
    special = (*of_names.values(), *(token for value in others if (token := _special(value))))
    return SpecialTokens(
        named={key: token.content for key, token in of_names.items()},
        special=special,
        by_id=_by_id(directory, decoder, {token.content for token in special}),
        whole=decoder is not None,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; {} if there is no such file."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return cast(dict[str, Any], found)


def _by_id(directory: Path, decoder: object, special: set[str]) -> dict[int, AddedToken]:
    """Tokens that are listed with ids: in tokenizer_config.json, else in added_tokens.json."""
    found: dict[int, AddedToken] = {}
    try:
        if decoder is not None:
            for index, value in cast(Mapping[str, Mapping[str, Any]], decoder).items():
                flags = {key: bool(value[key]) for key in _FLAGS if key in value}
                found[int(index)] = AddedToken(value["content"], **flags)
        else:
            for text, index in read_json(directory / "added_tokens.json").items():
                is_special = text in special
                found[int(index)] = AddedToken(text, normalized=not is_special, special=is_special)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        name = "added_tokens.json" if decoder is None else "tokenizer_config.json"
        raise CheckpointError(
            f"{directory / name}: its added tokens cannot be read ({error!r}): copy the file again "
            f"from the model's source"
        ) from error
    return found


def _special(value: object) -> AddedToken | None:
    """A special token as a string, or as an object with its flags; None for anything else."""
    if isinstance(value, str):
        return AddedToken(value, special=True) if value else None
    if not isinstance(value, dict):
        return None
    given = cast(dict[str, Any], value)
    content = given.get("content")
    if not isinstance(content, str) or not content:
        return None
    flags = {key: bool(given[key]) for key in _FLAGS if key in given}
    return AddedToken(content, **{**flags, "special": True})
