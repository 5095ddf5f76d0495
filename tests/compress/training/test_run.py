"""Whole runs: they learn, end in a packed checkpoint, and go on where they were killed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tercet.checkpoints.packed.read import open_packed
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.training.journal import read_journal
from tercet.compress.training.settings import TrainingSettings
from tercet.errors import AccuracyError, CheckpointError, PlanError, UnsupportedError
from tercet.runtime import load
from tercet.workflows.training.from_source import distill, train

# a CPU has the slow path only, and says so
pytestmark = pytest.mark.filterwarnings("ignore:.*slow path")
TIMES = ("tokens_per_s", "memory_bytes", "phase_s")


def settings(**changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "steps": 12,
        "sequences": 2,
        "length": 32,
        "learning_rate": 2e-3,
        "warmup": 2,
        "save_every": 5,
    }
    return TrainingSettings(**{**values, **changes})


def curve(directory: Path) -> list[dict[str, Any]]:
    lines = read_journal(directory / "training.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


class Killed(Exception):
    """Stands for whatever ends a run."""


def kill_at(step: int) -> Any:
    def told(line: dict[str, Any], _steps: int) -> None:
        if line["step"] == step:
            raise Killed

    return told


@pytest.mark.parametrize("plan", ["ternary", "nonary-a8", "int2-g32"])
def test_distilled_student_is_what_is_packed(
    plan: str, model: Path, ids: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = distill(model, plan, out, data=[ids], settings=settings(steps=20), device="cpu")
    lines = curve(out)
    assert [line["step"] for line in lines] == list(range(1, 21))
    first, last = (sum(line["loss"] for line in part) / 5 for part in (lines[:5], lines[-5:]))
    assert last < 0.9 * first
    assert result.last is not None
    assert result.last["loss"] == lines[-1]["loss"]
    checkpoint = open_packed(out)
    checkpoint.verify()
    assert len(checkpoint.modules) == 1 + 7
    teacher = load_file(model / "model.safetensors")
    norm = checkpoint.tensor("model.norm.weight")
    assert not torch.equal(norm, teacher["model.norm.weight"]), "norms are trained, too"
    # the packed student has the divergence that training ended with
    tokens = load_file(ids)["input_ids"].reshape(-1, 32)[:16]
    log_q = load(out, torch.float32).logits(tokens).log_softmax(-1).cpu()
    from transformers import LlamaForCausalLM

    with torch.no_grad():
        log_p = LlamaForCausalLM.from_pretrained(model)(tokens).logits.log_softmax(-1)
    divergence = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    assert divergence < 1.15 * last


def test_without_a_teacher(model: Path, ids: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(model, "ternary", out, data=[ids], settings=settings(learning_rate=8e-3), device="cpu")
    losses = [line["loss"] for line in curve(out)]
    assert losses[0] > 3.5, "log 64 is 4.2"
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]
    open_packed(out).verify()


SAME: dict[str, Any] = {"settings": settings(steps=8, accumulate=2, ramp=4), "device": "cpu"}


@pytest.fixture(scope="module")
def whole(model: Path, ids: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    distill(model, "ternary-a8", out, data=[ids], **SAME)
    return out


@pytest.mark.parametrize("at", [3, 7])
def test_killed_and_resumed_gives_the_same_curve(
    at: int, whole: Path, model: Path, ids: Path, tmp_path: Path
) -> None:
    """To the last bit: losses, gradient norms, flipped codes, and the files at the end."""
    broken, same = tmp_path / "broken", {"data": [ids], **SAME}
    with pytest.raises(Killed):
        distill(model, "ternary-a8", broken, progress=kill_at(at), **same)
    assert not broken.exists()
    distill(model, "ternary-a8", broken, resume=True, **same)
    assert curve(broken) == curve(whole)
    for path in whole.glob("*.safetensors"):
        assert path.read_bytes() == (broken / path.name).read_bytes()
    assert not (tmp_path / "broken.partial").exists()


def test_resume_refuses_another_run(model: Path, ids: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Killed):
        distill(
            model, "ternary", out, data=[ids], settings=settings(), device="cpu",
            progress=kill_at(1),
        )  # fmt: skip
    with pytest.raises(CheckpointError, match="another plan"):
        distill(
            model, "ternary", out, data=[ids], settings=settings(seed=1), device="cpu", resume=True
        )
    with pytest.raises(CheckpointError, match="unfinished run lies here"):
        distill(model, "ternary", out, data=[ids], settings=settings(), device="cpu")


def test_what_differs_is_named_and_nothing_else(model: Path, ids: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Killed):
        distill(
            model, "ternary", out, data=[ids], settings=settings(), device="cpu",
            progress=kill_at(1),
        )  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        distill(
            model, "ternary-a8", out, data=[ids], settings=settings(seed=1), device="cpu",
            resume=True,
        )  # fmt: skip
    said = str(caught.value)
    assert len(said) < 1000
    assert "plan.training.settings.seed 0, now 1" in said
    assert "learning_rate" not in said


@pytest.mark.parametrize("how", [distill, train])
def test_data_that_is_refused_leaves_nothing(
    how: Any, model: Path, ids: Path, tmp_path: Path
) -> None:
    few = write_few(tmp_path / "few.safetensors")
    same: dict[str, Any] = {"settings": settings(steps=1, length=64), "device": "cpu"}
    for resume in (False, True):
        with pytest.raises(PlanError, match="less than one sequence of 64"):
            how(model, "ternary", tmp_path / "out", data=[few], resume=resume, **same)
        assert list(tmp_path.iterdir()) == [few]
    how(model, "ternary", tmp_path / "out", data=[ids], **same)


def write_few(path: Path) -> Path:
    save_file({"input_ids": torch.arange(48)[None]}, path)
    return path


@pytest.mark.parametrize("how", [distill, train])
def test_the_model_is_not_replaced(how: Any, model: Path, ids: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in model.rglob("*")}
    for out in (model, model.parent, model / "out"):
        with pytest.raises(CheckpointError, match="the model that is read"):
            how(model, "ternary", out, data=[ids], settings=settings(), device="cpu",
                overwrite=True)  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in model.rglob("*")} == before


def test_data_that_is_refused_keeps_a_run_to_go_on_with(
    model: Path, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: dict[str, Any] = {"data": [ids], **SAME}
    with pytest.raises(Killed):
        distill(model, "ternary", tmp_path / "out", progress=kill_at(5), **same)

    def refuse(*_: object) -> None:
        raise PlanError("gone")

    with monkeypatch.context() as patched:
        patched.setattr("tercet.workflows.training.from_source.keep_tokens", refuse)
        with pytest.raises(PlanError, match="gone"):
            distill(model, "ternary", tmp_path / "out", resume=True, **same)
    distill(model, "ternary", tmp_path / "out", resume=True, **same)


def test_a_state_of_another_version_is_refused(model: Path, ids: Path, tmp_path: Path) -> None:
    out, same = tmp_path / "out", {"data": [ids], **SAME}
    with pytest.raises(Killed):
        distill(model, "ternary-a8", out, progress=kill_at(7), **same)
    (state,) = tmp_path.rglob("state*.pt")
    torch.save({**torch.load(state), "version": 1}, state)
    with pytest.raises(CheckpointError, match=r"state.*of version 1, where .*reads version 2"):
        distill(model, "ternary-a8", out, resume=True, **same)


def test_microbatches_give_the_gradient_of_one_batch(
    model: Path, ids: Path, tmp_path: Path
) -> None:
    for name, split in (("one", 1), ("four", 4)):
        distill(
            model, "nonary", tmp_path / name, data=[ids], device="cpu",
            settings=settings(steps=3, sequences=8 // split, accumulate=split),
        )  # fmt: skip
    for one, four in zip(curve(tmp_path / "one"), curve(tmp_path / "four"), strict=True):
        assert one["tokens"] == four["tokens"]
        assert abs(one["loss"] / four["loss"] - 1) < 1e-4
        assert abs(one["gradient_norm"] / four["gradient_norm"] - 1) < 1e-3


def test_bad_runs_end_in_words(
    model: Path, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as where it is not installed
    monkeypatch.setitem(sys.modules, "datasets", None)

    def run(plan: str = "ternary", data: str = str(ids), **changes: Any) -> None:
        distill(
            model, plan, tmp_path / "out", data=[data], settings=settings(**changes),
            device="cpu", overwrite=True,
        )  # fmt: skip

    with pytest.raises(PlanError, match="no such file"):
        run(data="missing.txt")
    with pytest.raises(UnsupportedError, match=r"tercet\[datasets\]"):
        run(data="hf:name")
    few = write_few(tmp_path / "few.safetensors")
    with pytest.raises(PlanError, match=r"48 tokens, less than one sequence of 64"):
        run(data=str(few), length=64)
    with pytest.raises(PlanError, match="sequences of 65 tokens, but the model has 64 positions"):
        run(length=65)
    with pytest.raises(PlanError, match="cannot be trained"):
        run("fp8_e4m3")


@pytest.mark.parametrize("rate", [1e25, 1e38])
def test_a_last_update_that_diverges_is_named(
    rate: float, model: Path, ids: Path, tmp_path: Path
) -> None:
    """No loss has seen it."""
    changed = settings(steps=1, warmup=0, learning_rate=rate)
    for resume in (False, True):
        with pytest.raises(AccuracyError, match="step 1: a weight is beyond all bounds"):
            train(
                model, "ternary", tmp_path / "out", data=[ids], settings=changed, device="cpu",
                resume=resume,
            )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_journal_has_what_a_run_is_watched_by(model: Path, ids: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    distill(
        model, "ternary", out, data=[ids], device="cpu",
        settings=settings(steps=6, ramp=4, log_every=2),
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["tokens"] for line in lines] == [128, 256, 384]
    assert [line["quantized_share"] for line in lines] == [0.25, 0.75, 1.0]
    for line in lines:
        assert set(line["phase_s"]) == {
            "data", "teacher", "forward", "backward", "optimizer", "codes"
        }  # fmt: skip
        assert 0 < line["flipped_share"] < 0.1
        assert line["tokens_per_s"] > 0
        assert line["memory_bytes"] > 2**20
        assert line["mfu"] is None, "the peak of a CPU is not known"


def test_cached_targets_train_nearly_as_the_teacher_does(
    model: Path, ids: Path, tmp_path: Path
) -> None:
    """With all but a few of the tokens in them; a second run reads those of the first."""
    same: dict[str, Any] = {"data": [ids], "device": "cpu", "settings": settings(steps=4)}
    losses, targets = DistillSettings(top_k=60), tmp_path / "targets"
    distill(model, "ternary", tmp_path / "live", **same)
    for name in ("first", "second"):
        distill(model, "ternary", tmp_path / name, losses=losses, targets=targets, **same)
    live, first, second = (curve(tmp_path / name) for name in ("live", "first", "second"))
    assert first == second
    for one, other in zip(live, first, strict=True):
        assert abs(other["loss"] / one["loss"] - 1) < 0.03
    losses = DistillSettings(top_k=60, hidden=1.0)
    with pytest.raises(PlanError, match="need the teacher beside the student"):
        distill(model, "ternary", tmp_path / "third", losses=losses, **same)


def test_data_free(model: Path, tmp_path: Path) -> None:
    """The teacher writes what the student is trained on."""
    distill(
        model, "nonary", tmp_path / "out", data=["teacher:300"], device="cpu",
        settings=settings(steps=3), losses=DistillSettings(generated_length=20, hidden=0.1),
    )  # fmt: skip
    lines = curve(tmp_path / "out")
    assert len(lines) == 3
    assert all(line["loss"] > line["divergence"] > 0 for line in lines)
    open_packed(tmp_path / "out").verify()


@pytest.mark.parametrize("given", [{}, {"steps": 3}, 5])
def test_settings_of_another_type_are_refused(tmp_path: Path, given: Any) -> None:
    said = "is of type .*: give None for the defaults or a "
    with pytest.raises(PlanError, match=f"settings {said}TrainingSettings"):
        distill("no-model", "ternary", tmp_path / "out", data="no-data", settings=given)
    with pytest.raises(PlanError, match=f"losses {said}DistillSettings"):
        distill("no-model", "ternary", tmp_path / "out", data="no-data", losses=given)
