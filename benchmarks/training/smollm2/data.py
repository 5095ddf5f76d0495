"""Tokens to distill SmolLM2 on and to evaluate it on, in one safetensors file.

python data.py TOKENIZER.json DATA_DIR OUT.safetensors [EXTRA ...] [--tales FILE] [--asked FILE]

Train: WikiText-2's train split as far as it is in DATA_DIR (its first 2.9 MB, letters outside
ASCII gone), State of the Union addresses, Moby Dick, GSM8K's train split, and the .txt files given
as EXTRA (documents apart by a line of `%%%%`); apart from it, novels and stories, and questions
with their answers, right and wrong (none that is evaluated). For the teacher: openings. Evaluation:
WikiText-2 test, one tokenization, and the requests of four tasks as lm-evaluation-harness forms
them, without examples (see `tasks.py`). No 20 tokens in a row may be in both.
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from openings import EACH, openings
from safetensors.torch import save_file
from tasks import TASKS, Requests, requests_of
from tokenizers import Tokenizer
from torch import Tensor
from writing import FREE

SEPARATOR = "\n%%%%\n"
END = 0  # <|endoftext|>, which lay between documents when the model was pretrained
LONGEST = 64
"""Tokens of a question that the teacher is to answer: most of a text is its own."""


def read_text(path: Path) -> str:
    """UTF-8 text of a plain or gzipped file."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def documents(data: Path, extra: list[Path]) -> Iterator[str]:
    """Training texts."""
    yield read_text(data / "wikitext2_raw/wiki.train.first2.9MB.txt.gz")
    yield read_text(data / "calib/sotu_1790_on.txt.gz")
    yield read_text(data / "calib/moby_dick.txt.gz")
    rows = map(json.loads, read_text(data / "gsm8k/train.jsonl").splitlines())
    yield "\n\n".join(f"{row['question']}\n{row['answer']}" for row in rows)
    for path in extra:
        yield from read_text(path).split(SEPARATOR)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids without special tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def train_tokens(tokenizer: Tokenizer, texts: Iterator[str]) -> Tensor:
    """int64 [n], documents apart by END."""
    ids: list[int] = []
    for text in texts:
        ids += [*tokens_of(tokenizer, text), END]
    return torch.tensor(ids)


Question = tuple[str, list[str]]
"""A context, and the ways it may go on."""


def questions_of(path: Path, evaluated: dict[str, Requests]) -> list[Question]:
    """Those of a file of {"context", "choices"} a line that are not evaluated, at random."""
    taken = {context for requests in evaluated.values() for context, *_ in requests}
    rows = map(json.loads, read_text(path).splitlines())
    found = [(row["context"], row["choices"]) for row in rows if row["context"] not in taken]
    random.Random(0).shuffle(found)
    return found


def answered(tokenizer: Tokenizer, questions: list[Question], evaluated: Tensor) -> Tensor:
    """Each question with each answer, int64 [n], END behind, at random; none with 12 tokens in
    a row of what is evaluated [m]."""
    texts = [context + choice for context, choices in questions for choice in choices]
    random.Random(1).shuffle(texts)
    ids = train_tokens(tokenizer, iter(texts))
    inside = torch.isin(runs(ids, 12), runs(evaluated, 12)).nonzero()[:, 0]
    place = (ids == END).cumsum(0)
    # END belongs to the text before it
    place[ids == END] -= 1
    return ids[~torch.isin(place, place[inside])]


def beginnings(tokenizer: Tokenizer, texts: list[str]) -> dict[str, Tensor]:
    """Openings [n, P], FREE behind, and the tokens that end a line [m]; int32."""
    rows = [tokens_of(tokenizer, text) for text in texts]
    width = max(map(len, rows))
    padded = torch.tensor([row + [FREE] * (width - len(row)) for row in rows], dtype=torch.int32)
    words = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
    ends = [token for token, word in enumerate(words) if word.endswith("\n")]
    return {"openings": padded, "line_ends": torch.tensor(ends, dtype=torch.int32)}


def runs(ids: Tensor, length: int) -> Tensor:
    """A number for each run of so many tokens in ids [n], equal for equal runs; int64."""
    found = torch.zeros(len(ids) - length + 1, dtype=torch.int64)
    for place in range(length):
        # wraps around at 2^64, as a hash may
        found = found * 6364136223846793005 + ids[place : place + len(found)].long() + 1
    return found


def without(text: Tensor, asked: Tensor, length: int = 20) -> Tensor:
    """Text [n] less every run of `length` tokens that is in asked [m], too; as its own type."""
    inside = torch.isin(runs(text.int(), length), runs(asked, length))
    places = inside.nonzero()[:, 0]
    keep = torch.ones(len(text), dtype=torch.bool)
    for ahead in range(length):
        keep[places + ahead] = False
    return text.int()[keep].to(text.dtype)


def packed(requests: Requests, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """Requests as tensors: ids of all, end to end, and what is needed to take them apart."""
    ids: list[int] = []
    rows: list[list[int]] = []
    for question, (context, choices, _) in enumerate(requests):
        before = len(tokens_of(tokenizer, context))
        for choice in choices:
            whole = tokens_of(tokenizer, context + choice)
            rows.append(
                [question, len(whole), min(before, len(whole) - 1), len(choice.lstrip().encode())]
            )
            ids += whole
    return {
        "ids": torch.tensor(ids, dtype=torch.uint16),
        "rows": torch.tensor(rows, dtype=torch.int32),
        "answers": torch.tensor([answer for *_, answer in requests], dtype=torch.int32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("extra", type=Path, nargs="*")
    parser.add_argument("--tales", type=Path, help="novels and stories, as EXTRA")
    parser.add_argument("--asked", type=Path, help="questions: {context, choices} a line")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    train = train_tokens(tokenizer, documents(arguments.data, arguments.extra))
    test = tokens_of(tokenizer, read_text(arguments.data / "wikitext2_raw/wiki.test.raw"))
    requests = {task: requests_of(task, arguments.data) for task in TASKS}
    tensors = {
        "train": train.to(torch.uint16),
        "wikitext2_test": torch.tensor(test, dtype=torch.uint16),
    }
    for task in TASKS:
        for name, value in packed(requests[task], tokenizer).items():
            tensors[f"{task}.{name}"] = value
    if arguments.tales:
        tales = read_text(arguments.tales).split(SEPARATOR)
        tensors["tales"] = train_tokens(tokenizer, iter(tales)).to(torch.uint16)
    known = [tensors["wikitext2_test"], *(tensors[f"{task}.ids"] for task in TASKS)]
    evaluated = torch.cat([ids.int() for ids in known])
    for name in ("train", "tales"):
        if name in tensors:
            tensors[name] = without(tensors[name], evaluated)
    contexts: list[str] = []
    if arguments.asked:
        questions = questions_of(arguments.asked, requests)
        contexts = [c for c, _ in questions if len(tokens_of(tokenizer, c)) <= LONGEST][:EACH]
        tensors["asked"] = answered(tokenizer, questions, evaluated).to(torch.uint16)
    tensors |= beginnings(tokenizer, openings() + contexts)
    save_file(tensors, arguments.out)
    print({name: list(value.shape) for name, value in tensors.items()})


if __name__ == "__main__":
    main()
