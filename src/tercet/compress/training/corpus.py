"""Corpus: what `--data` names, as chunks of token ids, a document's end after each document.

    FILE.txt, FILE.txt.gz        one document
    FILE.jsonl, FILE.jsonl.gz    a document a line, its key "text"
    FILE.safetensors             input_ids, tokenized already
    hf:NAME[:CONFIG[:SPLIT]]     a data set of Hugging Face `datasets`, streamed, its column "text"
    DIRECTORY                    all of its files of these kinds, by name
    teacher:TOKENS               texts that the teacher itself writes, so many tokens of them, some
                                 going on from what was read before

Several are read one after the other, until there are as many tokens as the run needs.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tercet.checkpoints.text_file import is_of, read_texts
from tercet.checkpoints.token_ids import check_ids, read_token_ids
from tercet.checkpoints.tokenizer_file import read_tokenizer
from tercet.errors import PlanError, UnsupportedError

HUB, TEACHER = "hf:", "teacher:"
_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".safetensors")
_BATCH = 256

Writer = Callable[[int, Tensor], Iterator[Tensor]]
"""Texts of so many tokens by a teacher, some of which go on from rows of ids [n, P]."""

# tokens of a beginning, how far apart they are at first, and how many are kept at most
_BEGINNING, _APART, _MOST_BEGINNINGS = 16, 128, 1 << 16


class Corpus:
    """Texts and token files of a run.

    Args:
        data: what to read, in order.
        tokenizer: a tokenizer.json.
        end: the token after each document; None for none.
        write: by the teacher; None where there is no teacher.
        vocabulary: how many tokens the model has; None where what is read is not compared with it.

    Raises:
        PlanError: nothing is there to read, or not of a known kind.
        UnsupportedError: a data set of the hub, without the library for it.
    """

    def __init__(
        self,
        data: Iterable[str],
        tokenizer: Path,
        end: int | None,
        write: Writer | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self._parts = [part for reference in data for part in find_parts(reference)]
        self._tokenizer, self._end, self._write = tokenizer, end, write
        self._vocabulary = vocabulary
        for part in self._parts:
            if part.startswith(TEACHER):
                self._check_teacher(part)
        if not self._parts:
            raise PlanError(f"no data to train on: give {', '.join(_SUFFIXES)} or {HUB}NAME")

    def chunks(self, most: int | None = None) -> Iterator[Tensor]:
        """Token ids, int64 [n] each, until there are `most` of them or no more.

        Raises:
            PlanError: a part cannot be read, or has ids that the model does not know.
        """
        left, beginnings = sys.maxsize if most is None else most, _Beginnings()
        for part in self._parts:
            for chunk in self._read_chunks(part, beginnings):
                if left <= 0:
                    return
                if self._vocabulary is not None and chunk.numel():
                    check_ids(chunk, self._vocabulary, f"{part}:")
                if not part.startswith(TEACHER):
                    beginnings.add(chunk)
                yield chunk[:left]
                left -= chunk.numel()

    def _read_chunks(self, part: str, beginnings: "_Beginnings") -> Iterator[Tensor]:
        if part.startswith(TEACHER):
            assert self._write is not None
            yield from self._write(int(part.removeprefix(TEACHER)), beginnings.rows())
            return
        if is_of(Path(part), ".safetensors") and not part.startswith(HUB):
            yield read_token_ids(Path(part)).reshape(-1)
            return
        encoder = self._encoder()
        texts = iter(_hub_texts(part) if part.startswith(HUB) else read_texts(Path(part)))
        while batch := list(islice(texts, _BATCH)):
            ends = [] if self._end is None else [self._end]
            for encoded in encoder.encode_batch(batch, add_special_tokens=False):
                yield torch.tensor(encoded.ids + ends, dtype=torch.int64)

    def _check_teacher(self, part: str) -> None:
        count = part.removeprefix(TEACHER)
        if self._write is None or not count.isdecimal() or not int(count):
            raise PlanError(
                f"{part}: texts by the teacher are {TEACHER}TOKENS, as in {TEACHER}1000000, and "
                f"need one: `tercet distill` has a teacher, `tercet train` has none"
            )

    def _encoder(self) -> Tokenizer:
        if not self._tokenizer.exists():
            raise PlanError(
                "the model has no tokenizer.json, so text cannot be tokenized: give a safetensors "
                "file with input_ids"
            )
        return read_tokenizer(self._tokenizer)


class _Beginnings:
    """A few tokens here and there of all that is read."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._count, self._apart = 0, _APART

    def add(self, ids: Tensor) -> None:
        """Of ids [n]: every so many tokens, from the first on; the more there are, the fewer."""
        if len(ids) < _BEGINNING:
            return
        # a view would keep the whole document
        self._kept.append(ids.unfold(0, _BEGINNING, self._apart).clone())
        self._count += len(self._kept[-1])
        while self._count > _MOST_BEGINNINGS:
            self._kept = [self.rows()[::2].clone()]
            self._count, self._apart = len(self._kept[0]), 2 * self._apart

    def rows(self) -> Tensor:
        """All that are kept, int64 [n, 16]."""
        return torch.cat([torch.empty(0, _BEGINNING, dtype=torch.int64), *self._kept])


def end_token(config: Mapping[str, Any]) -> int | None:
    """The token after each document, by config.json; None where it names none."""
    end: Any = config.get("eos_token_id")
    return cast("list[int]", end)[0] if isinstance(end, list) else end


def find_parts(reference: str) -> list[str]:
    """What a reference stands for: itself, or the files of a folder.

    Raises:
        PlanError: there is no such file, or none of a known kind in the folder.
        UnsupportedError: a data set of the hub, without the library for it.
    """
    if reference.startswith(HUB):
        if not reference.removeprefix(HUB).split(":")[0]:
            raise PlanError(f"{reference}: name a data set, as in {HUB}wikitext:wikitext-2-raw-v1")
        if importlib.util.find_spec("datasets") is None:
            raise UnsupportedError(
                f"{reference}: Hugging Face datasets is not installed: "
                f"pip install 'tercet[datasets]'"
            )
        return [reference]
    if reference.startswith(TEACHER):
        return [reference]
    path = Path(reference)
    if path.is_dir():
        found = sorted(str(p) for p in path.rglob("*") if p.is_file() and is_of(p, *_SUFFIXES))
        if not found:
            raise PlanError(f"{reference}: no file of {', '.join(_SUFFIXES)} in it")
        return found
    if not path.is_file():
        raise PlanError(f"{reference}: no such file; a data set of the hub is {HUB}NAME")
    if not is_of(path, *_SUFFIXES):
        raise PlanError(
            f"{reference}: a file's name says what it holds: {', '.join(_SUFFIXES)}: rename it, or "
            f"write what it holds as one of them"
        )
    return [reference]


def _unlike_text(row: Mapping[str, Any]) -> str:
    if "text" not in row:
        return f"columns are {', '.join(row)}: one must be text, and hold strings"
    return (
        f"the column text holds a {type(row['text']).__name__}, no string: name another data set, "
        f"or write its texts to a .jsonl file"
    )


def _hub_texts(reference: str) -> Iterator[str]:
    name, config, split, *_ = [*reference.removeprefix(HUB).split(":"), "", ""]
    load: Any = import_module("datasets").load_dataset
    try:
        rows = load(name, config or None, split=split or "train", streaming=True)
        for number, row in enumerate(cast("Iterable[dict[str, Any]]", rows)):
            if not isinstance(row.get("text"), str):
                raise PlanError(f"{reference}, row {number}: {_unlike_text(row)}")
            yield row["text"]
    # what the hub, the network and a data set's own files raise
    except (OSError, ValueError) as error:
        said = next(iter(str(error).splitlines()), "")
        raise PlanError(
            f"{reference}: cannot be read ({type(error).__name__}: {said}): check the name, the "
            "configuration and the network"
        ) from error
