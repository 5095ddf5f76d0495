"""lm-evaluation-harness on packed weights and its own `hf` model on the dequantized twin."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval.utils
import pytest
from datasets import Dataset
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from tercet.errors import CheckpointError
from tercet.evaluate.tasks.catalog import find_tasks, tasks
from tercet.evaluate.tasks.harness_task import build
from tercet.evaluate.tasks.language_model import PackedLM
from tercet.evaluate.tasks.requirements import check_requirements
from tercet.evaluate.tasks.run import evaluate_task, mean_scores
from tercet.evaluate.tasks.stored_rows import read_rows
from tercet.evaluate.tasks.token_model import DecoderModel, TransformersModel
from tercet.runtime import load

CHOICES = ("arc_challenge", "arc_easy", "hellaswag", "lambada", "mmlu", "openbookqa", "piqa")


@pytest.fixture(scope="module")
def packed(twins: Any) -> PackedLM:
    return PackedLM(DecoderModel(load(twins.packed, device="cpu").model), twins.tokenizer)


@pytest.fixture(scope="module")
def own(twins: Any) -> Any:
    return HFLM(pretrained=twins.dequantized, tokenizer=twins.tokenizer, batch_size=4, device="cpu")


def test_data_that_windows_saved_holds_the_same_rows(data: Path, tmp_path: Path) -> None:
    """With a mark of the byte order and ends of lines of its own."""
    (task,) = find_tasks(["piqa"])
    (tmp_path / "piqa").mkdir()
    for path in (data / "piqa").iterdir():
        zipped = path.suffix == ".gz"
        content = gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()
        content = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
        (tmp_path / "piqa" / path.name).write_bytes(gzip.compress(content) if zipped else content)
    assert read_rows(task, tmp_path).splits == read_rows(task, data).splits


@pytest.mark.parametrize(("name", "shots"), [(name, 0) for name in CHOICES] + [("arc_easy", 2)])
def test_both_give_the_same_answers(
    name: str, shots: int, packed: PackedLM, own: Any, data: Path
) -> None:
    (task,) = find_tasks([name])
    rows = read_rows(task, data)
    found, expected = (
        evaluate_task(model, build(task, rows, shots), limit=4, chat=False)
        for model in (packed, own)
    )
    assert len(found) == (57 if name == "mmlu" else 4)
    for one, other in zip(found, expected, strict=True):
        assert (one.key, one.target, one.prompts) == (other.key, other.target, other.prompts)
        assert {**one.scores, "perplexity": 0} == {**other.scores, "perplexity": 0}
        assert len(one.responses) == (1 if name == "lambada" else 2 if name == "piqa" else 4)
        for (mine, greedy), (theirs, theirs_greedy) in zip(
            one.responses, other.responses, strict=True
        ):
            assert mine == pytest.approx(theirs, abs=1e-3)
            assert greedy == theirs_greedy
    assert any(one.scores[task.metric] for one in found) or name in ("lambada", "piqa", "arc_easy")
    assert all(prompt.count("Answer:") == 1 + shots for prompt in found[0].prompts) or shots == 0


def test_a_first_token_of_the_tokenizer_s_own_is_not_doubled(
    packed: PackedLM, twins: Any, data: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(twins.packed)
    begins = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.backend_tokenizer.post_processor = begins
    assert tokenizer.encode("a")[0] == 0
    mine = PackedLM(packed._model, tokenizer)
    theirs = HFLM(pretrained=twins.dequantized, tokenizer=tokenizer, batch_size=1, device="cpu")
    contexts = ["Question: who?\nAnswer:", "<|end|>Question: who?", ""]
    requests = [SimpleNamespace(args=(context, " she did")) for context in contexts]
    found, expected = mine.loglikelihood(requests), theirs.loglikelihood(requests)
    for (one, _), (other, _) in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-3)
    without = packed.loglikelihood(requests[:1])[0][0]
    assert abs(found[0][0] - without) > 1e-2


def test_texts_are_encoded_together(packed: PackedLM, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = ["Question: who?\nAnswer:", "ends in spaces  ", "<|end|>begins with the end"]
    requests = [SimpleNamespace(args=(context, " she")) for context in contexts for _ in range(2)]
    alone = [packed.loglikelihood([request])[0] for request in requests]
    monkeypatch.setattr(packed.tokenizer, "encode", lambda *_, **__: pytest.fail("one by one"))
    together = packed.loglikelihood(requests)
    for (one, greedy), (other, other_greedy) in zip(together, alone, strict=True):
        # in a batch of another size products are summed in another order
        assert one == pytest.approx(other, abs=1e-3)
        assert greedy == other_greedy


def test_subjects_are_asked_together(
    packed: PackedLM, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = find_tasks(["mmlu"])
    built = build(task, read_rows(task, data), 0)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(packed, "progress", lambda done, total: seen.append((done, total)))
    compiled: list[str] = []
    compile_template = lm_eval.utils.env.compile

    def count(source: str, *arguments: Any, **options: Any) -> Any:
        compiled.append(source)
        return compile_template(source, *arguments, **options)

    monkeypatch.setattr(lm_eval.utils.env, "compile", count)
    evaluate_task(packed, built, limit=1, chat=False)
    # four answers of one question a subject, of which each gets its own text
    assert seen[-1] == (4 * 57, 4 * 57)
    assert 0 < len(compiled) == len(set(compiled)) < 57 * 3
    lm_eval.utils.env.from_string("{{ a }}")
    lm_eval.utils.env.from_string("{{ a }}")
    assert compiled[-2:] == ["{{ a }}"] * 2, "the harness has its own way back"


def test_an_empty_context_is_the_end_of_a_text(packed: PackedLM, own: Any) -> None:
    class Request:
        args = ("", "text")

    (mine,), (theirs,) = packed.loglikelihood([Request()]), own.loglikelihood([Request()])
    assert mine[0] == pytest.approx(theirs[0], abs=1e-3)


def test_every_task_is_the_harness_s_own(data: Path) -> None:
    for task in tasks().values():
        check_requirements([task], data)
        rows = read_rows(task, data)
        built = build(task, rows, None)
        assert len(built) == max(len(task.subjects), 1)
        for one in built.values():
            assert task.metric.split(",")[0] in one._metric_fn_list


# examples of MATH-500 are the harness's own, longer than this model takes
WRITTEN = (("gsm8k", None), ("gsm8k", 0), ("ifeval", None), ("math500", 0), ("humaneval", None))


@pytest.mark.parametrize(("name", "shots"), WRITTEN)
def test_both_write_the_same_answers(
    name: str, shots: int | None, packed: PackedLM, own: Any, data: Path
) -> None:
    (task,) = find_tasks([name])
    check_requirements([task], data)
    rows = read_rows(task, data)
    found, expected = (
        evaluate_task(model, build(task, rows, shots, max_tokens=12), limit=4, chat=False)
        for model in (packed, own)
    )
    assert len(found) == 4
    for one, other in zip(found, expected, strict=True):
        assert one == other
        assert task.metric in one.scores
    assert len({one.responses[0] for one in found}) > 1 or name in ("ifeval", "humaneval")
    if name == "gsm8k":
        assert found[0].prompts[0].count("Question:") == (6 if shots is None else 1)


def test_an_answer_ends_at_its_stop_sequence(packed: PackedLM, twins: Any) -> None:
    drawn: list[int] = []

    class Counts(TransformersModel):
        def _follow(self, prompt: Any, count: int) -> Any:
            for token in super()._follow(prompt, count):
                drawn.append(token)
                yield token

    class Request:
        args = ("Question: 3 and 1?", {"until": [], "max_gen_toks": 20, "do_sample": False})

    (whole,) = packed.generate_until([Request()])
    Request.args = (Request.args[0], {**Request.args[1], "until": [whole[5:7]]})
    counting = PackedLM(Counts(twins.dequantized), twins.tokenizer)
    assert counting.generate_until([Request()]) == [whole[: whole.index(whole[5:7])]]
    assert len(drawn) < 20


@pytest.mark.parametrize("stop", [": ", "ab", "é", "\n\n", "日本", " x"])
def test_a_stop_sequence_is_seen_with_its_last_token(stop: str, twins: Any) -> None:
    model = PackedLM(TransformersModel(twins.dequantized), twins.tokenizer)
    tokens = model.tok_encode(f"So it is{stop}and more", add_special_tokens=False)
    whole = [model._is_whole(tokens[:end], (stop,)) for end in range(1, len(tokens) + 1)]
    decoded = [stop in twins.tokenizer.decode(tokens[:end]) for end in range(1, len(tokens) + 1)]
    first = decoded.index(True)
    assert whole[: first + 1] == decoded[: first + 1]


class Says(PackedLM):
    """A model that answers what it is told to."""

    def __init__(self, twins: Any, answers: list[str]) -> None:
        super().__init__(TransformersModel(twins.dequantized), twins.tokenizer)
        self._answers = answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._answers[: len(requests)]


@pytest.mark.parametrize(
    ("name", "answers", "scores"),
    [
        ("gsm8k", ["So #### 1", "#### 7", "It is 3", "#### 4\nQuestion"], [1, 0, 0, 1]),
        (
            "math500",
            ["Thus $\\boxed{1}$", "The final answer is $2$.", "$\\boxed{4}$", ""],
            [1, 1, 0, 0],
        ),
        ("ifeval", ["one", "one, two", "one two three", "one two three"], [1, 0, 1, 0]),
        (
            "humaneval",
            ["    return x", "    return x + 1", "    return x - 2", "    while True: x +"],
            [1, 1, 0, 0],
        ),
    ],
)
def test_right_and_wrong_answers_score_so(
    name: str, answers: list[str], scores: list[float], twins: Any, data: Path
) -> None:
    (task,) = find_tasks([name])
    check_requirements([task], data)
    built = build(task, read_rows(task, data), 0)
    found = evaluate_task(Says(twins, answers), built, limit=4, chat=False)
    assert [one.scores[task.metric] for one in found] == scores
    assert [one.responses[0] for one in found] == answers
    if name == "gsm8k":
        assert [one.scores["exact_match,flexible-extract"] for one in found] == [1, 0, 1, 1]
    if name == "ifeval":
        assert found[1].scores["inst_level_strict_acc"] == [0.0, 1.0]
        assert mean_scores(found)["inst_level_strict_acc"] == 6 / 8


def test_a_hub_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**_: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    (task,) = find_tasks(["piqa"])
    with pytest.raises(CheckpointError, match=r"give baber/piqa \(Couldn't reach the Hub\):"):
        build(task, None, None)


def test_rows_of_the_hub_are_asked_as_they_are(
    packed: PackedLM, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the harness loads itself gives the samples that the same rows on disk give."""
    (task,) = find_tasks(["piqa"])
    rows = read_rows(task, data)
    splits = {name: Dataset.from_list(found) for name, found in rows.splits.items()}
    monkeypatch.setattr(
        "datasets.load_dataset", lambda **_: {**splits, "train": splits["validation"]}
    )
    found = evaluate_task(packed, build(task, None, None), limit=3, chat=False)
    assert found == evaluate_task(packed, build(task, rows, None), limit=3, chat=False)
