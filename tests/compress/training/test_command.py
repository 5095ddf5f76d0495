"""The commands: settings by name, JSON at the end, refusals in one line."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tercet.cli.main import main
from tercet.compress.training.journal import Journal, read_journal
from tercet.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*slow path")


@pytest.fixture
def run(run_on: Any, ids: Path) -> Any:
    return partial(run_on, ids)


@pytest.fixture
def run_on(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    def call(data: Path, command: str, *words: str) -> tuple[int, str, str]:
        common = [str(model), "--data", str(data), "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["tercet", command, *common, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err  # pyright: ignore[reportReturnType]

    return call


SHORT = ["--steps", "3", "--length", "16", "--sequences", "2", "--device", "cpu"]


def test_distill(run: Any, tmp_path: Path) -> None:
    words = ["--to", "ternary-a8", "--set", "warmup=1", "--set", "divergence=jsd", "--json"]
    code, out, _ = run("distill", *SHORT, *words)
    assert code == 0
    report = json.loads(out)
    assert report["directory"] == str(tmp_path / "out")
    assert report["last"]["step"] == 3
    assert report["last"]["tokens"] == 96
    manifest = json.loads((tmp_path / "out" / "tercet_manifest.json").read_text())
    how = manifest["plan"]["training"]
    assert how["settings"]["warmup"] == 1
    assert how["losses"]["divergence"] == "jsd"
    assert manifest["modules"]["model.layers.0.mlp.up_proj"]["algorithm"] == "qat"


def test_more_predictions_than_the_teacher_has_are_refused_first(run: Any, tmp_path: Path) -> None:
    words = ["--to", "ternary", "--set", "top_k=100000"]
    code, _, err = run("distill", *SHORT, *words)
    assert code == 2
    assert "top_k=100000: the teacher predicts 64 tokens: give --set top_k=K with K up to 64" in err
    assert not list(tmp_path.iterdir())


def test_train(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("train", *SHORT, "--to", "nonary")
    assert code == 0
    assert "after 96 tokens the loss was 4." in " ".join(out.split())
    assert (tmp_path / "out" / "training.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--to", "ternary", "--set", "warmpu=1"],
            "setting 'warmpu': did you mean 'warmup'",
        ),
        (["--to", "ternary", "--set", "warmup"], "write KEY=VALUE"),
        (["--to", "ternary", "--set", "precision=int3"], "precision = 'int3': Input should be"),
        (["--to", "ternary", "--set", "hidden=-1"], "hidden = -1: Input should be greater"),
        ([], "give either --to FORMAT or --plan FILE"),
        (["--to", "ternery"], "did you mean 'ternary'"),
        (["--to", "ternary", "--data", "teacher:many"], "texts by the teacher are teacher:TOKENS"),
        (["--to", "ternary", "--data", "teacher:0"], "texts by the teacher are teacher:TOKENS"),
        (["--to", "ternary", "--data", "hf:"], "name a data set, as in hf:"),
        (["--to", "ternary", "--set", "steps=4"], "--set steps=4 and --steps 3: give one"),
        (["--to", "ternary", "--set", "seed=99999999999999999999"], "seed = 99999999999999999999"),
        (["--to", "ternary", "--set", "betas=0.9,0.95"], "write --set 'betas=[A,B]'"),
        (["--to", "ternary", "--set", "learning_rate=.inf"], "should be a finite number"),
        (["--to", "ternary", "--set", "beta=["], "the value is no YAML"),
        (["--to", "ternary", "--targets", "kept"], "--targets kept: a run keeps its teacher's"),
        (["--to", "ternary", "--device", "cuda:99"], "device cuda:99: there are"),
        (["--to", "ternary", "--device", "tpu"], "allowed are cpu, cuda and cuda:N"),
    ],
)
def test_refusals(run: Any, tmp_path: Path, words: list[str], message: str) -> None:
    code, _, err = run("distill", *SHORT, *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.parametrize("command", ["distill", "train"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("far.safetensors", torch.tensor([[3, 9, 64]]), "ids run from 3 to 64"),
        ("below.safetensors", torch.tensor([[3, -1]]), "ids run from -1 to 3"),
        ("shares.safetensors", torch.rand(2, 40), "input_ids are torch.float32: give token ids"),
        ("empty.safetensors", torch.zeros(0, 4, dtype=torch.int64), "there is no text in it"),
    ],
)
def test_data_that_is_refused(
    model: Path,
    run_on: Any,
    tmp_path: Path,
    command: str,
    name: str,
    content: Tensor,
    message: str,
) -> None:
    data = tmp_path / name
    save_file({"input_ids": content}, data)
    code, _, err = run_on(data, command, *SHORT, "--to", "ternary")
    assert code == 2
    assert message in " ".join(err.split())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_loss_that_is_not_finite_ends_the_run(run: Any, tmp_path: Path) -> None:
    words = ["--set", "warmup=0", "--set", "clip=0", "--set", "save_every=1"]
    steps = ["--steps", "30", "--length", "16", "--sequences", "2", "--device", "cpu"]
    code, _, err = run("train", *steps, "--to", "ternary", "--learning-rate", "1e12", *words)
    assert code == 2
    assert "training diverged; begin anew with a smaller learning rate than 1e+12" in err
    assert not (tmp_path / "out").exists()
    state = torch.load(tmp_path / "out.partial" / "unfinished" / "state.pt", weights_only=True)
    assert state["step"] < 30


def test_train_has_no_teacher_and_no_losses(run: Any) -> None:
    _, _, err = run("train", *SHORT, "--to", "ternary", "--set", "divergence=jsd")
    assert "unknown setting 'divergence'" in err
    _, _, err = run("train", *SHORT, "--to", "ternary", "--data", "teacher:100")
    assert "`tercet train` has none" in " ".join(err.split())


def test_a_journal_cut_short_goes_on_as_one_curve(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    journal = Journal(tmp_path, 2, tensorboard=False)
    journal.write({"step": 2, "loss": 2.5})
    journal.close()
    assert read_journal(path) == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]


def test_tensorboard_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a line, by a writer that stands in for TensorBoard's; and its absence in words."""
    seen: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, place: str, purge_step: int) -> None:
            assert place == str(tmp_path / "tensorboard")
            assert purge_step == 5

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            seen.append(("closed", 0.0, 0))

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tercet\[tensorboard\]'"):
        Journal(tmp_path, 5, tensorboard=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    journal = Journal(tmp_path, 5, tensorboard=True)
    journal.write({"step": 5, "loss": 1.5, "mfu": None, "phase_s": {"data": 0.25}})
    journal.close()
    assert seen == [("loss", 1.5, 5), ("phase_s/data", 0.25, 5), ("closed", 0.0, 0)]
