"""A tiny random model, its packed copy and that copy's dequantized twin; invented questions."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Outcome, runner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import tercet
from tercet.evaluate.tasks.catalog.mmlu import SUBJECTS

PLAN = tercet.Plan.model_validate(
    {
        "name": "test",
        "rules": [{"match": "*.layers.*", "format": "nonary-g32", "algorithm": "rtn"}],
    }
)
END = "<|end|>"


@dataclass(frozen=True)
class Twins:
    """Attributes: directories of the source and of the packed model; the packed one's weights in
    transformers; its tokenizer."""

    source: Path
    packed: Path
    dequantized: Any
    tokenizer: Any


def write_tokenizer(directory: Path) -> None:
    """A token a byte, and one that ends texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END: 0, **{letter: at + 1 for at, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([END])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
    )


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp("twins")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "source")
    write_tokenizer(folder / "source")
    tercet.compress(folder / "source", PLAN, folder / "packed")
    twin: Any = AutoModelForCausalLM.from_pretrained(folder / "source")
    checkpoint = tercet.open_packed(folder / "packed")
    for name in checkpoint.modules:
        weight = checkpoint.read_packed(name).dequantize(torch.float32)
        twin.get_submodule(name).weight.data = weight
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "packed")
    return Twins(folder / "source", folder / "packed", twin.eval(), tokenizer)


def _lettered(at: int) -> dict[str, Any]:
    choices = [f"stone {at}", "a lamp", "rain, or snow", "nothing at all"]
    text = "".join(f"\n {letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    query = f"Question: What lies on table {at}?{text}\nAnswer:"
    return {"id": f"t{at}", "query": query, "choices": list("ABCD"), "gold": at % 4}


def _labelled(at: int, question: str) -> dict[str, Any]:
    choices = {"text": [f"one {at}", "two", "three", "four"], "label": list("ABCD")}
    return {"id": f"v{at}", question: f"How many? {at}", "choices": choices, "answerKey": "C"}


def _scene(at: int) -> dict[str, Any]:
    return {
        "ind": at,
        "activity_label": "Baking",
        "ctx_a": f"Someone kneads dough {at}.",
        "ctx_b": "then it",
        "endings": ["rests.", "sings [title] loudly.", "is baked for an hour.", "rolls off."],
        "label": str(at % 4),
    }


def _passage(at: int) -> dict[str, Any]:
    return {"id": at, "query": f"He lost {at} keys and found one", "answers_text": ["key"]}


def _subject_rows(question: str) -> list[dict[str, Any]]:
    return [
        {"question": f"{question} {subject}?", "subject": subject, "answer": at % 4}
        | {"choices": ["yes", "no", "it depends", "never"]}
        for at, subject in enumerate(SUBJECTS)
    ]


def _function(at: int) -> dict[str, Any]:
    name = f"plus_{at}"
    return {
        "task_id": f"Test/{at}",
        "prompt": f'def {name}(x):\n    """Adds {at}."""\n',
        "entry_point": name,
        "canonical_solution": f"    return x + {at}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {1 + at}\n",
    }


def rows_of(questions: int) -> dict[str, list[dict[str, Any]]]:
    """Invented rows of each file, in the layouts that the catalog reads."""
    many = range(questions)
    arc = {
        f"arc/ARC-{level}-{split}.jsonl": rows
        for level in ("Easy", "Challenge")
        for split, rows in (
            ("test", [_lettered(at) for at in many]),
            ("validation", [_labelled(at, "question") for at in many]),
        )
    }
    return {
        **arc,
        "openbookqa/test.jsonl": [_lettered(at) for at in many],
        "openbookqa/validation.jsonl": [_labelled(at, "question_stem") for at in many],
        "hellaswag/validation.jsonl": [_scene(at) for at in many],
        "piqa/validation.jsonl": [
            {"goal": f"open jar {at}", "sol1": "turn the lid", "sol2": "sit on it", "label": at % 2}
            for at in many
        ],
        "lambada/test.jsonl": [_passage(at) for at in many],
        "mmlu/dev.jsonl": _subject_rows("Was it"),
        "mmlu/test.jsonl": _subject_rows("Is it"),
        **{
            f"gsm8k/{split}.jsonl": [
                {"question": f"{at} and 1?", "answer": f"{at}+1=<<{at}+1={at + 1}>>\n#### {at + 1}"}
                for at in many
            ]
            for split in ("train", "test")
        },
        "math500/math500.jsonl": [
            {"problem": f"What is ${at}+1$?", "solution": f"It is $\\boxed{{{at + 1}}}$."}
            for at in many
        ],
        "ifeval/input_data.jsonl": [
            {
                "key": at,
                "prompt": "Write without commas.",
                "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
                "kwargs": [{}, {"relation": "at least", "num_words": at + 1}],
            }
            for at in many
        ],
        "humaneval/HumanEval.jsonl": [_function(at) for at in many],
    }


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with six questions a task, some files gzipped."""
    folder = tmp_path_factory.mktemp("data")
    for at, (name, rows) in enumerate(rows_of(6).items()):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
        if at % 2:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(lines))
        else:
            path.write_bytes(lines)
    # that it is there is looked for; these questions need nothing of it
    (folder / "nltk_data" / "tokenizers" / "punkt_tab").mkdir(parents=True)
    return folder


Copy = Callable[..., Path]


@pytest.fixture
def copy_data(data: Path, tmp_path: Path) -> Copy:
    """A copy of the data that a test may change."""

    def copy() -> Path:
        target = tmp_path / "data"
        for path in data.rglob("*.jsonl*"):
            own = target / path.relative_to(data)
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_bytes(path.read_bytes())
        (target / "nltk_data" / "tokenizers" / "punkt_tab").mkdir(parents=True)
        return target

    return copy


class OneLine(Outcome):
    """Whose standard error has nothing but the refusal."""

    @property
    def error(self) -> str:
        """The one line on standard error that a refusal prints."""
        (line,) = self.err.splitlines()
        assert line == super().error
        return line


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the real entry point in this process."""
    return runner(monkeypatch, capsys, OneLine)
