"""Nothing that benchmarks/training/smollm2 evaluates is among what it trains on."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

WORDS = {"<end>": 0, **{f"w{number}": number for number in range(1, 100)}}


@pytest.fixture
def data(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/smollm2/data.py")


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(WordLevel(WORDS, unk_token="<end>"))
    made.pre_tokenizer = WhitespaceSplit()
    return made


def words(first: int, last: int) -> str:
    return " ".join(f"w{number}" for number in range(first, last))


def test_runs_of_evaluated_text_are_taken_out(data) -> None:
    text = torch.tensor([*range(1, 31), *range(50, 60)], dtype=torch.uint16)
    asked = torch.tensor([90, *range(5, 26), 91])
    assert data.without(text, asked).tolist() == [1, 2, 3, 4, *range(26, 31), *range(50, 60)]


def test_questions_that_are_evaluated_are_not_read(data, tokenizer, tmp_path: Path) -> None:
    rows = [
        {"context": words(1, 4), "choices": [" w9", " w8"]},
        {"context": words(10, 14), "choices": [" w7"]},
        {"context": words(30, 44), "choices": [" w6", " w5"]},
    ]
    file = tmp_path / "asked.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = data.questions_of(file, {"a": [("w1 w2 w3", [" w9"], 0)]})
    assert {context for context, _ in found} == {words(10, 14), words(30, 44)}
    # twelve words of the longer one are elsewhere in what is evaluated
    evaluated = torch.tensor([99, *range(31, 43), 98, *range(10, 14)])
    assert data.answered(tokenizer, found, evaluated).tolist() == [10, 11, 12, 13, 7, 0]
    other = data.answered(tokenizer, found, torch.arange(45, 90)).tolist()
    assert sorted(other) == sorted([*range(10, 14), 7, 0, *[*range(30, 44), 0] * 2, 5, 6])


def test_all_is_evaluated_once(script: Callable[[str], ModuleType]) -> None:
    distill = script("benchmarks/training/smollm2/distill.py")
    tasks = script("benchmarks/training/smollm2/tasks.py")
    assert sorted(distill.EVALUATIONS) == sorted([*tasks.TASKS, distill.WIKITEXT])
