"""A recipe does what its commands do one by one, and goes on where it was interrupted."""

from pathlib import Path
from typing import Any

import pytest
from command_line import runner
from safetensors.torch import save_file
from tiny_decoders import contents, plan, save, tokens

from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.read import open_packed
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.pipeline import compress
from tercet.errors import CheckpointError, PlanError
from tercet.recipes.catalog import RECIPES, find_recipe
from tercet.recipes.recipe import Pass, Recipe
from tercet.workflows.training import recipe as workflow
from tercet.workflows.training.finetune import FineTuned, finetune
from tercet.workflows.training.recipe import distill_by_recipe

TUNING: dict[str, Any] = {"batch": 8, "scale_learning_rate": 0.003, "held_out": 0.25}
FIRST = FineTuning(epochs=2, learning_rate=0.02, **TUNING)
SECOND = FineTuning(epochs=1, learning_rate=0.01, seed=1, **TUNING)
LENGTH, SHORTER = 16, 8


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    """What the workflow takes, of a tiny model."""
    text, calibration = tmp_path / "text.safetensors", tmp_path / "calibration.safetensors"
    save_file({"input_ids": tokens(32, seed=5)}, text)
    save_file({"input_ids": tokens(16)}, calibration)
    return {
        "teacher": save("llama", tmp_path / "source"),
        "recipe": Recipe(
            about="tiny",
            data="at random",
            plan=plan("int3-g16", None),
            passes=(
                Pass(settings=FIRST, length=LENGTH, teacher_tokens=160),
                Pass(settings=SECOND, length=SHORTER),
            ),
        ),
        "data": [text],
        "calibration": calibration,
        "device": "cpu",
    }


def not_again(*_: Any, **__: Any) -> None:
    pytest.fail("compressed")


def by_hand(tmp_path: Path, arguments: dict[str, Any]) -> Path:
    """The commands one by one."""
    packed, once, twice = (tmp_path / name for name in ("packed", "once", "twice"))
    compress(
        arguments["teacher"],
        arguments["recipe"].plan,
        packed,
        calibration=arguments["calibration"],
        device="cpu",
    )
    more: dict[str, Any] = {"teacher": arguments["teacher"], "device": "cpu"}
    data = [*arguments["data"], "teacher:160"]
    finetune(packed, once, data=data, settings=FIRST, length=LENGTH, **more)
    finetune(once, twice, data=arguments["data"], settings=SECOND, length=SHORTER, **more)
    return twice


def test_it_gives_the_bytes_of_its_commands(tmp_path: Path, arguments: dict[str, Any]) -> None:
    told = list[tuple[int, int, str]]()

    def tell(done: int, of: int, what: str) -> None:
        told.append((done, of, what))

    result = distill_by_recipe(out=tmp_path / "out", progress=tell, **arguments)
    assert contents(result.directory) == contents(by_hand(tmp_path, arguments))
    assert result.directory == tmp_path / "out"
    assert not (tmp_path / "out.stages").exists()
    manifest = open_packed(result.directory).manifest
    assert manifest is not None
    described = manifest.plan["finetuning"]
    assert (described["seed"], described["before"]["seed"]) == (1, 0)
    assert described["before"]["data"][-1] == "teacher:160"
    stages = [what.split(",")[0] for _, _, what in told]
    assert sorted(set(stages)) == ["stage 1 of 3", "stage 2 of 3", "stage 3 of 3"]
    assert stages == sorted(stages)


@pytest.mark.parametrize("broken", [0, 1])
def test_an_interrupted_one_goes_on_to_the_same_bytes(
    broken: int, tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = tmp_path / "out", list[Path]()

    def interrupted(checkpoint: Path, *arguments: Any, **options: Any) -> Any:
        calls.append(checkpoint)
        if len(calls) == broken + 1:

            def stop(measured: int, count: int, what: str) -> None:
                if measured == 1:
                    raise KeyboardInterrupt

            options = {**options, "progress": stop}
        return finetune(checkpoint, *arguments, **options)

    monkeypatch.setattr(workflow, "finetune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distill_by_recipe(out=out, **arguments)
    monkeypatch.undo()
    assert not out.exists()
    assert (tmp_path / "out.stages").is_dir()

    with pytest.raises(CheckpointError, match="an unfinished run lies here; go on with --resume"):
        distill_by_recipe(out=out, **arguments)
    changed = arguments["recipe"].model_copy(update={"passes": arguments["recipe"].passes[:1]})
    other: dict[str, Any] = {**arguments, "recipe": changed}
    with pytest.raises(CheckpointError, match=r"is of another command \(recipe, teacher"):
        distill_by_recipe(out=out, **other, resume=True)

    anew = list[Path]()

    def go_on(checkpoint: Path, *rest: Any, **options: Any) -> FineTuned:
        anew.append(checkpoint)
        return finetune(checkpoint, *rest, **options)

    monkeypatch.setattr(workflow, "compress", not_again)
    monkeypatch.setattr(workflow, "finetune", go_on)
    result = distill_by_recipe(out=out, **arguments, resume=True)
    # what was over is not done again
    assert len(anew) == 2 - broken
    assert contents(result.directory) == contents(by_hand(tmp_path, arguments))
    assert not (tmp_path / "out.stages").exists()


def test_overwrite_begins_anew(tmp_path: Path, arguments: dict[str, Any]) -> None:
    out = tmp_path / "out"
    distill_by_recipe(out=out, **arguments)
    with pytest.raises(CheckpointError, match="already exists"):
        distill_by_recipe(out=out, **arguments)
    before = contents(out)
    (tmp_path / "out.stages").mkdir()
    distill_by_recipe(out=out, **arguments, overwrite=True)
    assert contents(out) == before


def test_what_the_user_keeps_beside_the_output_stays(
    tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "compress", not_again)
    (tmp_path / "out.stages").mkdir()
    (tmp_path / "out.stages" / "thesis.txt").write_text("mine")
    for options in ({"overwrite": True}, {"resume": True}, {}):
        with pytest.raises(CheckpointError, match=r"out\.stages"):
            distill_by_recipe(out=tmp_path / "out", **arguments, **options)
        assert [path.name for path in tmp_path.glob("out.stages/*")] == ["thesis.txt"]
        assert not list(tmp_path.glob(".out*"))


def test_the_teacher_is_not_replaced(tmp_path: Path, arguments: dict[str, Any]) -> None:
    for out in (arguments["teacher"], Path(arguments["teacher"]) / "out"):
        with pytest.raises(CheckpointError, match="the model that is read"):
            distill_by_recipe(out=out, **arguments, overwrite=True)


def test_a_second_run_of_it_is_told_at_once(
    tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "compress", not_again)
    with (
        lock_output(tmp_path / "out.stages"),
        pytest.raises(CheckpointError, match="another run is writing there"),
    ):
        distill_by_recipe(out=tmp_path / "out", **arguments, overwrite=True)


def test_what_is_wrong_is_found_first_and_leaves_nothing(
    tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "compress", not_again)
    wrong: dict[str, Any] = {**arguments, "data": [tmp_path / "missing.txt"]}
    with pytest.raises(PlanError, match="no such file"):
        distill_by_recipe(out=tmp_path / "out", **wrong)
    monkeypatch.undo()
    wrong = {**arguments, "teacher": tmp_path / "no-model"}
    with pytest.raises(CheckpointError):
        distill_by_recipe(out=tmp_path / "out", **wrong)
    assert not list(tmp_path.glob("out*"))


def test_the_command_knows_its_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_recipe("smollm2-ternary") is RECIPES["smollm2-ternary"]
    with pytest.raises(PlanError, match="unknown recipe 'smollm2-ternery': did you mean 'smollm2"):
        find_recipe("smollm2-ternery")
    text = tmp_path / "text.txt"
    text.write_text("words")
    run, out = runner(monkeypatch, capsys), tmp_path / "out"
    for more, said in (
        (["--recipe", "smollm2-ternary", "--to", "ternary"], "--recipe says how it is done"),
        (["--recipe", "smollm2-ternary", "--steps", "5"], "--recipe says how it is done"),
        (["--recipe", "smollm2-ternary", "--tensorboard"], "--recipe says how it is done"),
        (["--recipe", "none"], "unknown recipe 'none'"),
        (["--to", "ternary", "--calibration", text], "--calibration is for --recipe"),
    ):
        done = run("distill", "smollm2-135m", "--data", text, "--out", out, *more)
        assert said in done.error
    assert not out.exists()


def test_a_model_with_too_few_positions_is_refused_first(
    tmp_path: Path, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "compress", not_again)
    long = Pass(settings=FIRST, length=100_000)
    arguments["recipe"] = arguments["recipe"].model_copy(update={"passes": (long,)})
    with pytest.raises(PlanError, match=r"positions: give a recipe with sequences of [0-9]+ or"):
        distill_by_recipe(out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out.stages").exists()
