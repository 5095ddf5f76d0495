"""tokenizer.json as GGUF metadata: a BPE with its merges, special tokens and template.

Of a byte-level one llama.cpp has the text splitter in its own code and finds it by name; which name
belongs to a tokenizer.json is told by its pre_tokenizer. An unknown one is refused: with a wrong
splitter text becomes other tokens than the model was trained on, and nobody is told.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.tokenizer_file import read_special_tokens, read_tokenizer
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.gguf.container import Field
from tercet.export.gguf.sentencepiece import sentencepiece_fields, steps_of

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}| ?", r"|\p{N}{1,3}| ?")

_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = _WORD % ("", "", "")
_GPT_4O = _WORD % (_SHORT, _SHORT, "{1,3}")

_SPLITTERS: dict[tuple[str, ...], tuple[str | None, str | None]] = {
    ("ByteLevel regex",): ("gpt-2", None),
    ("Digits individual", "ByteLevel regex"): ("smollm", None),
    (f"Split {_QWEN2}", "ByteLevel"): ("qwen2", None),
    (f"Split {_LLAMA3}", "ByteLevel"): ("dbrx", "llama-bpe"),
    (f"Split {_GPT_4O}", "ByteLevel"): ("gpt-4o", None),
    (f"Split {_TEKKEN}", "ByteLevel"): (None, "tekken"),
}
"""pre_tokenizer, step by step, to llama.cpp's names (its llama-vocab.cpp): of the splitter, and of
the one that looks a whole word up before it merges."""


def vocabulary_fields(checkpoint: PackedCheckpoint, rows: int) -> dict[str, Field]:
    """The tokenizer's fields; without a tokenizer.json the file runs on token ids alone.

    Args:
        checkpoint: its directory holds the tokenizer's files.
        rows: of the embedding; tokens beyond the tokenizer's own are filled in as unused.
    """
    path = checkpoint.directory / "tokenizer.json"
    if not path.is_file():
        return {"tokenizer.ggml.model": "none"}
    content = _read(path)
    model: dict[str, Any] = content.get("model") or {}
    if model.get("type") != "BPE" or not model.get("merges"):
        raise UnsupportedError(
            f"{path}: a {model.get('type')} tokenizer; Tercet writes BPE into GGUF, byte-level or "
            f"SentencePiece's: remove tokenizer.json to export a file that runs on token ids"
        )
    tokens, types = _tokens(path, model, rows)
    fields = sentencepiece_fields if model.get("byte_fallback") else _byte_level_fields
    return {**fields(path, content, tokens, types), **_special(checkpoint, path, tokens)}


def _byte_level_fields(
    path: Path, content: dict[str, Any], tokens: list[str], types: list[int]
) -> dict[str, Field]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _splitter(path, content),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [
            merge if isinstance(merge, str) else " ".join(merge)
            for merge in content["model"]["merges"]
        ],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _tokens(path: Path, model: dict[str, Any], rows: int) -> tuple[list[str], list[int]]:
    tokens = [f"[PAD{index}]" for index in range(rows)]
    types = [_UNUSED] * rows
    found = [(text, index, _NORMAL) for text, index in model["vocab"].items()]
    for index, added in read_tokenizer(path).get_added_tokens_decoder().items():
        found.append((added.content, index, _CONTROL if added.special else _USER_DEFINED))
    for text, index, kind in found:
        if index >= rows:
            raise CheckpointError(
                f"token {text!r} has id {index}, but the embedding has {rows} rows: tokenizer.json "
                f"belongs to another model"
            )
        tokens[index], types[index] = text, kind
    return tokens, types


def _splitter(path: Path, content: dict[str, Any]) -> str:
    steps = tuple(_step(step) for step in steps_of(content.get("pre_tokenizer"), "pretokenizers"))
    if steps not in _SPLITTERS:
        names = [name for names in _SPLITTERS.values() for name in names if name is not None]
        raise UnsupportedError(
            f"{path}: its pre_tokenizer ({'; '.join(steps)}) is none of those of "
            f"{', '.join(names)}: llama.cpp would split text in another way; remove "
            f"tokenizer.json to export a file that runs on token ids"
        )
    whole_words = bool(content["model"].get("ignore_merges"))
    merging, looking_up = _SPLITTERS[steps]
    name, other = (looking_up, merging) if whole_words else (merging, looking_up)
    if name is None:
        raise UnsupportedError(
            f"{path}: ignore_merges is {whole_words}, but llama.cpp's {other!r} works the other "
            f"way: remove tokenizer.json to export a file that runs on token ids"
        )
    return name


def _step(step: Mapping[str, Any]) -> str:
    match step["type"]:
        case "Split":
            pattern = step["pattern"]
            plain = step["behavior"] == "Isolated" and not step["invert"]
            return f"Split {pattern.get('Regex')}" if plain else "Split otherwise"
        case "ByteLevel":
            prefix = " prefix" if step["add_prefix_space"] else ""
            return f"ByteLevel{prefix}{' regex' if step.get('use_regex', True) else ''}"
        case "Digits":
            return f"Digits{' individual' if step['individual_digits'] else ''}"
        case other:
            return str(other)


def _special(checkpoint: PackedCheckpoint, path: Path, tokens: list[str]) -> dict[str, Field]:
    config = _read(checkpoint.directory / "tokenizer_config.json")
    named = read_special_tokens(checkpoint.directory).named
    generation = _read(checkpoint.directory / "generation_config.json")
    fields: dict[str, Field] = {}
    for role, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        text = named.get(f"{role}_token")
        index = tokens.index(text) if text in tokens else None
        for source in (generation, checkpoint.config):
            index = index if index is not None else _first(source.get(f"{role}_token_id"))
        if index is not None:
            fields[f"tokenizer.ggml.{name}_token_id"] = index
    begins = read_tokenizer(path).encode("a").ids[:1]
    fields["tokenizer.ggml.add_bos_token"] = begins == [fields.get("tokenizer.ggml.bos_token_id")]
    template = _template(checkpoint.directory, config)
    return fields if template is None else {**fields, "tokenizer.chat_template": template}


def _first(found: Any) -> int | None:
    value: object = cast(list[object], found)[0] if isinstance(found, list) else cast(object, found)
    return value if isinstance(value, int) else None


def _template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found: Any = config.get("chat_template")
    if isinstance(found, list):
        entries = cast(list[dict[str, str]], found)
        found = {entry["name"]: entry["template"] for entry in entries}.get("default")
    return found if isinstance(found, str) else None
