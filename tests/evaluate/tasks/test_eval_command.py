"""`tercet eval MODEL --tasks ...`: answers, their folder, going on after a kill, refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.child_process.untrusted import Ending
from tercet.evaluate.tasks import requirements
from tercet.evaluate.tasks.samples import read_samples, read_settings
from tercet.workflows import tasks as workflow

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test named after a refusal fails if a model is opened."""
    if "refused" in request.node.name:
        monkeypatch.setattr(workflow, "open_model", lambda *_: pytest.fail("a model was opened"))


def test_a_run_keeps_every_answer(run: Run, twins: Any, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    asked = ("--tasks", "arc_easy,lambada", "--task-data", data, "--limit", 4)
    done = run("eval", twins.packed, *asked, "--out", out, "--json", "--record", tmp_path / "all")
    assert done.code == 0, done.err
    records = json.loads(done.out)
    assert [one["settings"]["task"] for one in records] == ["arc_easy", "lambada"]
    assert len((tmp_path / "all").read_text().splitlines()) == 2
    assert {path.name for path in out.iterdir()} == {
        "settings.json",
        "records.jsonl",
        "arc_easy.jsonl",
        "lambada.jsonl",
    }
    for one in records:
        samples = read_samples(out, one["settings"]["task"])
        right = sum(sample.scores["acc"] for sample in samples)
        metrics = one["metrics"]
        assert (metrics["questions"], metrics["score"]) == (4, right / 4)
        assert metrics["score_low"] <= metrics["score"] <= metrics["score_high"]
        assert one["settings"]["shots"] == 0
        assert metrics.get("score_chance") == (0.25 if len(samples[0].responses) == 4 else None)
        assert one["settings"]["truncated_prompts"] == 0
    first = read_samples(out, "arc_easy")[1]
    assert first.prompts == ["Question: What lies on table 1?\nAnswer:"]
    assert first.row["choices"]["text"] == ["stone 1", "a lamp", "rain, or snow", "nothing at all"]
    assert first.target == 1
    best = max(range(4), key=lambda at: first.responses[at][0])
    assert first.scores["acc"] == float(best == 1)
    assert read_settings(out).model == str(twins.packed)


def test_an_uncompressed_model_is_asked_the_same(run: Run, twins: Any, data: Path) -> None:
    asked = ("--tasks", "piqa", "--task-data", data, "--shots", 0)
    table = run("eval", twins.source, twins.packed, *asked)
    assert table.code == 0, table.err
    lines = [line for line in table.out.splitlines() if "piqa" in line]
    assert len(lines) == 2


def test_a_finished_task_is_not_asked_again(
    run: Run, twins: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill within a task leaves the tasks before it, and no half of its own."""
    out = tmp_path / "run"
    arguments = ("eval", twins.packed, "--tasks", "piqa,arc_easy", "--task-data", data)
    arguments = (*arguments, "--limit", 3, "--out", out, "--json")
    asked: list[str] = []
    ask = workflow._ask

    def killed(task: Any, *rest: Any) -> Any:
        if task.name == "arc_easy":
            raise KeyboardInterrupt
        return ask(task, *rest)

    monkeypatch.setattr(workflow, "_ask", killed)
    assert run(*arguments).code == 130
    assert not (out / "arc_easy.jsonl").exists()
    monkeypatch.setattr(
        workflow, "_ask", lambda task, *rest: (asked.append(task.name), ask(task, *rest))[1]
    )
    assert "go on with its run by --resume" in run(*arguments).error
    assert run(*arguments, "--resume").code == 0
    assert asked == ["arc_easy"]
    again = run(*arguments, "--resume")
    assert asked == ["arc_easy"]
    whole = json.loads(run(*arguments[:-3], "--out", tmp_path / "other", "--json").out)
    for one, other in zip(json.loads(again.out), whole, strict=True):
        for each in (one, other):
            del each["metrics"]["seconds"], each["time"]
        assert one == other
    for name in ("piqa", "arc_easy"):
        file = f"{name}.jsonl"
        assert (out / file).read_text() == (tmp_path / "other" / file).read_text()
    changed = (*arguments[:7], 2, *arguments[8:], "--resume")
    assert "was begun with other settings (limit 3, now 2)" in run(*changed).error


def test_refused_without_data(run: Run, twins: Any, copy_data: Run, tmp_path: Path) -> None:
    asked = ("eval", twins.packed, "--tasks", "arc_easy", "--task-data")
    folder = copy_data()
    assert "no such folder" in run(*asked, tmp_path / "none").error
    (file,) = folder.glob("arc/ARC-Easy-test*")
    file.unlink()
    error = run(*asked, folder, "--out", tmp_path / "run").error
    assert f"arc_easy: no data: {folder / 'arc' / 'ARC-Easy-test.jsonl'} is missing" in error
    assert "docs/guides/evaluate-tasks.md says where to get it" in error
    assert not (tmp_path / "run").exists()
    file = folder / "arc" / "ARC-Easy-test.jsonl"
    for text, wanted in (
        ("", "holds no rows"),
        ("{}\n[1]\n", ":2: must be a JSON object"),
        ("{", ":1: is not JSON"),
        ('{"query": "Question: Who?\\n A. I\\nAnswer:", "choices": ["A", "B"]}', "2 choices are"),
        ('{"query": "Question: Who?\\n A. I\\nAnswer:", "choices": ["A"]}', ":1: is no row of"),
    ):
        file.write_text(text)
        assert wanted in run(*asked, folder).error


def test_refused_where_a_subject_is_missing(run: Run, twins: Any, copy_data: Run) -> None:
    folder = copy_data()
    (file,) = folder.glob("mmlu/test*")
    file.unlink()
    row = {"question": "?", "subject": "cooking", "choices": list("abcd"), "answer": 0}
    (folder / "mmlu" / "test.jsonl").write_text(json.dumps(row))
    error = run("eval", twins.packed, "--tasks", "mmlu", "--task-data", folder).error
    assert "subjects without a row: abstract_algebra, anatomy, " in error
    assert "unknown subjects: cooking: mmlu is the mean over all 57 subjects" in error


def test_refused_unknown_names_and_options(
    run: Run, twins: Any, data: Path, tmp_path: Path
) -> None:
    asked = ("eval", twins.packed, "--task-data", data)
    error = run(*asked, "--tasks", "arc_easi").error
    assert "unknown task 'arc_easi': did you mean 'arc_easy'" in error
    assert "piqa" in error.partition("known: ")[2]
    assert "no task is named" in run(*asked, "--tasks", ",").error
    assert "name some with --tasks" in run(*asked).error
    more = (*asked, "--tasks", "piqa")
    assert "are about perplexity" in run(*more, "--text", "text.txt").error
    assert "give one" in run(*more, twins.source, "--out", tmp_path / "run").error
    error = run(*more, "--shots", 2).error
    assert "piqa: 2 examples before each question, but the data hold 0 to draw them from" in error
    assert "add piqa/train.jsonl, or give --shots 0" in error
    assert "the data hold 6" in run(*asked, "--tasks", "arc_easy", "--shots", 7).error
    assert "is no directory" in run("eval", tmp_path / "no", *more[2:]).error


def test_refused_without_the_extra(
    run: Run, twins: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = requirements.find_spec
    monkeypatch.setattr(
        requirements, "find_spec", lambda name: None if name == "lm_eval" else find(name)
    )
    error = run("eval", twins.packed, "--tasks", "piqa", "--task-data", data).error
    assert "lm_eval is not installed: pip install 'tercet[tasks]'" in error


def test_refused_without_nltk_s_data(
    run: Run, twins: Any, copy_data: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_data()
    monkeypatch.setattr("nltk.data.path", [])
    (folder / "nltk_data" / "tokenizers" / "punkt_tab").rmdir()
    error = run("eval", twins.packed, "--tasks", "ifeval", "--task-data", folder).error
    assert "ifeval: its answers are scored with NLTK's tokenizers/punkt_tab, which is in" in error
    assert "run `python -m nltk.downloader punkt_tab`" in error


def test_refused_where_no_program_can_be_run_apart(
    run: Run, twins: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(error="ended the process itself (exit status 1)", missing=())
    monkeypatch.setattr(requirements, "run_untrusted", lambda _: ending)
    error = run("eval", twins.packed, "--tasks", "humaneval", "--task-data", data).error
    assert "even an empty program ended the process itself (exit status 1) there" in error


def test_answers_are_written_and_run(run: Run, twins: Any, data: Path, tmp_path: Path) -> None:
    names = "gsm8k,math500,ifeval,humaneval"
    asked = ("--tasks", names, "--task-data", data, "--limit", 2, "--max-tokens", 4, "--shots", 0)
    done = run("eval", twins.packed, *asked, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    records = {one["settings"]["task"]: one for one in json.loads(done.out)}
    assert list(records) == names.split(",")
    assert {one["settings"]["max_tokens"] for one in records.values()} == {4}
    assert isinstance(records["humaneval"]["settings"]["sandbox_lacks"], str)
    assert records["gsm8k"]["settings"]["sandbox_lacks"] is None
    assert "score_chance" not in records["gsm8k"]["metrics"]
    # a sentence of eight words without a comma follows all of these instructions
    assert records["ifeval"]["metrics"]["score_chance"] == 1
    for name in records:
        for sample in read_samples(tmp_path / "run", name):
            assert len(sample.responses) == 1
            # a token a byte
            assert len(sample.responses[0]) <= 4
    wanted = run("eval", twins.packed, *asked[:2], *asked[2:6], "--max-tokens", 3000)
    assert "an answer may have 3000 tokens, and the model has 2048 positions in all" in wanted.error


def test_damaged_folders_are_named(run: Run, twins: Any, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("eval", twins.packed, "--tasks", "piqa", "--task-data", data, "--out", out)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert "is no run of tasks: settings.json is missing" in run(*arguments, "--resume").error
    (out / "settings.json").write_text("{}")
    assert "cannot be read as settings of a run" in run(*arguments, "--resume").error
