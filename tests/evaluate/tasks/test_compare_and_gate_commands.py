"""`tercet compare` and `tercet gate` on simulated runs with a planted drop, and on tiny models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.evaluate.tasks.catalog import find_tasks
from tercet.evaluate.tasks.run import record
from tercet.evaluate.tasks.samples import RunSettings, Sample, keep_task
from tercet.records import Environment
from tercet.workflows import tasks as workflow

Run = Callable[..., Any]


def write_run(folder: Path, right: dict[str, list[bool]], *, limit: int | None = None) -> Path:
    """A run whose answers to each task are as they are given."""
    settings = RunSettings(
        model=folder.name,
        weights="",
        limit=limit,
        shots=None,
        max_tokens=None,
        chat=False,
        stored=True,
        harness="0",
    )
    for task in find_tasks(right):
        samples = [
            Sample(
                task=task.name,
                question=at,
                key=f"{at}",
                target=0,
                prompts=["?"],
                responses=[[-1.0 - at % 3, False]],
                scores={task.metric: float(one), "loglikelihood": -1.0 - at % 3 - 2.0 * one},
                row={},
            )
            for at, one in enumerate(right[task.name])
        ]
        kept = record(
            task,
            samples,
            subject=folder.name,
            settings={},
            score_chance=None,
            environment=Environment.here(),
            seconds=1.0,
        )
        keep_task(folder, settings, task.name, samples, kept)
    return folder


def plant(seed: int, questions: int, drop: float) -> tuple[list[bool], list[bool]]:
    """A teacher's answers and those of a model that loses so much of them."""
    random = np.random.default_rng(seed)
    teacher = random.random(questions) < 0.7
    lost = teacher & (random.random(questions) < (0.05 + drop) / 0.7)
    gained = ~teacher & (random.random(questions) < 0.05 / 0.3)
    return teacher.tolist(), ((teacher & ~lost) | gained).tolist()


def test_compare_counts_question_by_question(run: Run, tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", {"piqa": [True] * 40 + [False] * 10})
    other = write_run(tmp_path / "other", {"piqa": [False] * 12 + [True] * 30 + [False] * 8})
    done = run("compare", one, other, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["first"], found["second"], found["confidence"]) == ("one", "other", 0.95)
    acc, likelihood = found["comparisons"]
    assert (acc["task"], acc["metric"], acc["questions"]) == ("piqa", "acc", 50)
    assert (acc["first"], acc["second"]) == (0.8, 0.6)
    assert acc["difference"] == pytest.approx(-0.2)
    assert (acc["first_only"], acc["second_only"]) == (12, 2)
    # exact binomial: 2 (1 + 14 + 91) / 2^14
    assert acc["p_value"] == pytest.approx(2 * 106 / 2**14)
    assert acc["low"] < -0.2 < acc["high"] < 0
    # 2 a right answer: the loss of 10 of them is a gain of 20 / 50
    assert likelihood["difference"] == pytest.approx(0.4)
    assert 0 < likelihood["low"] < 0.4 < likelihood["high"]
    assert likelihood["p_value"] is None
    wide = json.loads(run("compare", one, other, "--confidence", 0.999, "--json").out)
    assert wide["comparisons"][0]["low"] < acc["low"]
    assert "12 / 2" in run("compare", one, other).out


def test_compare_refuses_what_cannot_be_paired(run: Run, tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", {"piqa": [True] * 5})
    assert "is no run of tasks" in run("compare", one, tmp_path).error
    fewer = write_run(tmp_path / "fewer", {"piqa": [True] * 4})
    error = run("compare", one, fewer).error
    assert "has 5 questions" in error
    assert "ask both with the same --limit" in error
    other = write_run(tmp_path / "other", {"arc_easy": [True]})
    assert "no task is answered in both: " in run("compare", one, other).error
    assert "holds no answers to arc_easy" in run("compare", one, other, "--tasks", "arc_easy").error
    file = fewer / "piqa.jsonl"
    file.write_text(file.read_text().replace('"key":"2"', '"key":"x"'))
    error = run("compare", fewer, write_run(tmp_path / "four", {"piqa": [True] * 4})).error
    assert "question 2 of piqa is another" in error
    file.write_text(file.read_text() + "{}\n")
    assert ":5: is no sample" in run("compare", fewer, one).error
    assert "must be at least 0.5" in run("compare", one, one, "--confidence", 1).error


def test_the_gate_says_in_19_of_20_seeds_what_was_planted(run: Run, tmp_path: Path) -> None:
    codes: dict[float, list[int]] = {0.1: [], 0.0: []}
    for drop, found in codes.items():
        for seed in range(20):
            teacher, model = plant(seed, 800, drop)
            folder = tmp_path / f"{drop}-{seed}"
            done = run(
                "gate",
                write_run(folder / "model", {"mmlu": model}),
                "--teacher",
                write_run(folder / "teacher", {"mmlu": teacher}),
                "--max-drop",
                "mmlu=4",
            )
            found.append(done.code)
    assert codes[0.1].count(1) >= 19
    assert codes[0.0].count(0) >= 19
    assert 0 not in codes[0.1]
    assert 1 not in codes[0.0]


def test_the_gate_gives_its_reasons(run: Run, tmp_path: Path) -> None:
    lost_six_gained_four = [*[False] * 6, *[True] * 68, *[False] * 26]
    few = ([True] * 70 + [False] * 30, lost_six_gained_four)
    many = plant(2, 3000, 0.08)
    model = write_run(tmp_path / "model", {"piqa": few[1], "mmlu": many[1], "lambada": many[0]})
    teacher = write_run(tmp_path / "teacher", {"piqa": few[0], "mmlu": many[0], "lambada": many[0]})
    asked = ("gate", model, "--teacher", teacher, "--max-drop")
    passed = run(*asked, "lambada=1.0")
    assert (passed.code, passed.err) == (0, "")
    assert "within 1 is proven" in passed.out
    assert "gate: passed" in passed.out
    # as the shell gives `--max-drop mmlu=2 piqa=3`, and with a comma
    for limits in (("mmlu=2", "piqa=3", "lambada=1"), ("mmlu=2,piqa=3", "lambada=1")):
        failed = run(*asked, *limits)
        assert failed.code == 1
        assert "more than 2 is proven" in failed.out
        assert "gate: failed" in failed.out
    undecided = run(*asked, "piqa=3", "lambada=1", "--json")
    assert undecided.code == 3
    found = json.loads(undecided.out)
    assert found["verdict"] == "undecided"
    first, second = found["tasks"]
    assert (first["task"], first["verdict"], second["verdict"]) == ("piqa", "undecided", "within")
    assert first["more"] > 50
    assert f"about {first['more']:,} more questions" in first["reason"]
    assert first["pairs"]["questions"] == 100


def test_the_gate_refuses_before_it_opens_a_model(
    run: Run, twins: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "open_model", lambda *_: pytest.fail("a model was opened"))
    asked = ("gate", twins.packed, "--task-data", data)
    assert "no limit is given" in run(*asked).error
    for word in ("piqa", "piqa=much", "piqa=1%"):
        assert "must be TASK=POINTS" in run(*asked, "--max-drop", word).error
    assert "must be from 0 to less than 100" in run(*asked, "--max-drop", "piqa=-1").error
    assert "names piqa twice" in run(*asked, "--max-drop", "piqa=1,piqa=2").error
    assert "unknown task 'pica'" in run(*asked, "--max-drop", "pica=1").error
    error = run("gate", twins.source, "--task-data", data, "--max-drop", "piqa=1").error
    assert "does not say which model it was made from" in error
    few = write_run(tmp_path / "few", {"piqa": [True]}, limit=1)
    error = run(*asked, "--max-drop", "piqa=1", "--teacher", few).error
    assert "was asked with other settings (limit 1, now None; harness 0, now 0.4." in error
    error = run(*asked, "--max-drop", "arc_easy=1", "--teacher", few).error
    assert "has not answered arc_easy: it has piqa" in error


def test_a_gate_on_models(run: Run, twins: Any, data: Path, tmp_path: Path) -> None:
    """The packed model against itself never fails, and with six questions nothing is proven."""
    out = tmp_path / "gate"
    same = run(
        "gate", twins.packed, "--teacher", twins.packed, "--max-drop", "piqa=1", "arc_easy=40",
        "--task-data", data, "--out", out, "--json",
    )  # fmt: skip
    assert same.code == 3, same.err
    piqa, arc = json.loads(same.out)["tasks"]
    assert (piqa["drop"], piqa["verdict"], arc["verdict"]) == (0, "undecided", "within")
    assert piqa["more"] > 100
    assert {path.name for path in out.iterdir()} == {"model", "teacher"}
    # the runs that it kept stand for their models
    again = run("gate", out / "model", "--teacher", out / "teacher", "--max-drop", "arc_easy=40")
    assert again.code == 0
    own = run("gate", twins.packed, "--max-drop", "piqa=99", "--task-data", data)
    assert own.code in (0, 3), own.err
