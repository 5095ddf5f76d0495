"""The generator, its template and the guide's worked example."""

import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.errors import CheckpointError, UnsupportedError
from tercet.harness.check.run import CheckReport, check
from tercet.harness.new_op import PATTERNS, generate, guide, new_op
from tercet.kernel.contract import Case, Op
from tercet.kernel.interpreter.corrections import interpreting
from tercet.ops.discover import find, names

# numpy, which interprets Triton's kernels, warns where a GPU overflows in silence
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# the interpreter refuses the load, before there is a store
_BESIDE = "forward" if interpreting() else "guard"
ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "write-a-kernel.md"
FILES = (
    "README.md", "__init__.py", "baselines.py", "cases.py", "op.py", "reference.py",
    "torch_path.py", "triton.py",
)  # fmt: skip


def checked(op: Op) -> CheckReport:
    """Everything but torch.compile, which takes half a minute, in this process."""
    return check(op, isolated=False, device="cpu", integration=False)


def faults(report: CheckReport) -> set[tuple[str, str]]:
    return {(fault.implementation, fault.check) for fault in report.faults}


def test_a_new_op_is_right_as_written(tmp_path: Path) -> None:
    made = new_op("as_written", tmp_path)
    assert made.files == FILES
    assert made.next_commands[0] == f"tercet kernel check {tmp_path / 'as_written'}"
    report = checked(find(made.address))
    assert not report.faults, report.faults[0]
    assert not report.skipped
    kinds = {(finding.implementation, finding.check) for finding in report.findings}
    for implementation in ("triton", "torch"):
        assert {(implementation, kind) for kind in ("forward", "backward", "guard")} <= kinds


def test_the_next_commands_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    made = new_op("with_spaces", tmp_path / "my ops")
    assert made.address == str(tmp_path / "my ops" / "with_spaces")
    for command in made.next_commands:
        assert shlex.split(command)[3] == made.address


@pytest.mark.parametrize("like", PATTERNS.values())
def test_a_copy_of_an_op_is_right_as_written(tmp_path: Path, like: str) -> None:
    made = new_op(f"like_{like}"[:24], tmp_path, like=like)
    op = find(made.address)
    assert op.name == made.name
    assert [one.name for one in op.implementations] == [
        one.name for one in find(like).implementations
    ]
    report = check(op, implementation="torch", isolated=False, device="cpu", quick=True)
    assert not report.faults, report.faults[0]


@pytest.mark.parametrize("like", sorted(set(names()) - set(PATTERNS.values())))
def test_any_op_can_be_copied(tmp_path: Path, like: str) -> None:
    op = find(new_op(f"as_{like}"[:24], tmp_path, like=like).address)
    assert (op.name, len(op.cases)) == (f"as_{like}"[:24], len(find(like).cases))
    assert {one.module.split(".")[2] for one in op.implementations} == {op.name}


def test_a_copy_is_of_the_sources_alone_under_the_new_name(tmp_path: Path) -> None:
    made = new_op("gated", tmp_path, like="softmax")
    assert {"gated.cu", "softmax_stream.cu"} <= set(made.files)
    assert not {"compiled.json", "mutants.json"} & set(made.files)
    assert "torch.softmax(x.double()" in (Path(made.folder) / "reference.py").read_text()
    texts = {file: (Path(made.folder) / file).read_text() for file in made.files}
    assert not [file for file, text in texts.items() if "tercet.ops.softmax" in text]
    assert "EDIT" in texts["README.md"]
    assert "| gated " not in texts["README.md"]


def test_names_the_ops_that_can_be_copied(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no op 'rms_nrm' to copy: did you mean rms_norm"):
        new_op("some_op", tmp_path, like="rms_nrm")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("inside = columns < N\n", "inside = columns < N + 1\n", {("triton", _BESIDE)}),
        ("2.0 * grad * positive * weight", "grad * positive * weight", {("triton", "backward")}),
        ("tl.sum(grad * positive * positive, 0)", "grad[0]", None),
    ],
)
def test_the_template_is_judged(
    tmp_path: Path, old: str, new: str, found: set[tuple[str, str]] | None
) -> None:
    """The check of the worked example is no formality: break it and it is red."""
    made = new_op(f"broken_{zlib.crc32(old.encode()):x}", tmp_path)
    source = Path(made.folder) / "triton.py"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    op = find(made.address)
    small = [case for case in op.cases if case.name.startswith(("3-17-", "5-260-"))]
    red = faults(
        check(op, implementation="triton", isolated=False, device="cpu", cases=small, drawn=0)
    )
    assert red
    if found is not None:
        assert found <= red


@pytest.mark.parametrize("name", ["ab", "a_name_of_24_characters_"])
def test_a_new_op_is_clean(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    made = new_op(name, tmp_path)
    assert "my_op" not in "".join((Path(made.folder) / file).read_text() for file in made.files)
    first_party = 'lint.isort.known-first-party=["tercet"]'
    for command in (("check", "--config", first_party), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rms_norm", "there is an op 'rms_norm' already"),
        ("lambda", "a word of Python"),
        ("match", "a word of Python"),
        ("torch", "a module that Python imports"),
        ("random", "a module that Python imports"),
        ("discover", "tercet.ops has a module 'discover'"),
        ("cost", "a name that the new op's files use"),
        ("reference", "a name that the new op's files use"),
        ("x", "2 to 24 lower-case letters"),
        ("Softmax", "2 to 24 lower-case letters"),
        ("2fast", "2 to 24 lower-case letters"),
        ("a-b", "2 to 24 lower-case letters"),
        ("../up", "2 to 24 lower-case letters"),
        ("a" * 25, "2 to 24 lower-case letters"),
        ("naïve", "2 to 24 lower-case letters"),
        ("ab\n", "2 to 24 lower-case letters"),
    ],
)
def test_refuses_a_name(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(words)):
        new_op(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_name_that_a_copy_uses_for_something_else(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'residual' is a name that the new op's files use"):
        new_op("residual", tmp_path, like="rms_norm")
    assert list(tmp_path.iterdir()) == []
    assert Path(new_op("residual", tmp_path).folder).is_dir()


def test_never_overwrites(tmp_path: Path) -> None:
    made = new_op("kept_op", tmp_path)
    (Path(made.folder) / "op.py").write_text("edited")
    with pytest.raises(UnsupportedError, match="exists already: nothing was written"):
        new_op("kept_op", tmp_path)
    assert (Path(made.folder) / "op.py").read_text() == "edited"


def test_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = Path.write_text, list[str]()

    def full(self: Path, *arguments: str, **options: str) -> int:
        written.append(self.name)
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        return write(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        new_op("half_op", tmp_path)
    assert len(written) == 4
    assert list(tmp_path.iterdir()) == []


def test_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnsupportedError, match="name another directory with --to"):
        new_op("nowhere_op", tmp_path / "file")


def test_goes_among_the_ops_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = tmp_path / "checkout" / "src" / "tercet" / "ops"
    ops.mkdir(parents=True)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(generate, "_ops_folder", lambda: ops)
    outside = new_op("some_op")
    assert outside.folder == str(here / "some_op")
    assert outside.address == outside.folder
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert new_op("other_op").folder == str(here / "other_op"), "not where nobody stands"
    monkeypatch.chdir(tmp_path / "checkout" / "src")
    inside = new_op("some_op")
    assert inside.folder == str(ops / "some_op")
    assert inside.address == "some_op"


def excerpts() -> list[tuple[str, str]]:
    """(path, code) of each block of the guide that names a file."""
    return re.findall(r"^```python (\S+)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_guide_comes_with_the_package() -> None:
    assert guide() == GUIDE.read_text()


def test_the_guide_quotes_what_is_in_the_files() -> None:
    assert len(excerpts()) >= 9
    for path, code in excerpts():
        assert code in (ROOT / path).read_text(), f"{path} does not hold:\n{code}"
    quoted = {Path(path).name for path, _ in excerpts()}
    assert quoted == {"reference.py", "cases.py", "torch_path.py", "op.py", "triton.py"}


@pytest.mark.parametrize("text", [GUIDE, ROOT / "AGENTS.md"], ids=["guide", "agents"])
def test_the_verbs_that_are_named_exist(text: Path) -> None:
    named = set(re.findall(r"tercet kernel ([a-z]+)", text.read_text()))
    folder = ROOT / "src" / "tercet" / "cli" / "kernel"
    assert named
    assert {verb for verb in named if not (folder / f"{verb}.py").is_file()} == set()


def test_the_worked_example_has_nothing_left_to_edit() -> None:
    folder = ROOT / "docs" / "guides" / "examples" / "gelu_gate"
    assert {path.name for path in folder.iterdir() if path.is_file()} >= set(FILES)
    assert not [path for path in folder.rglob("*.py") if "EDIT" in path.read_text()]


def test_a_sum_over_rows_whose_terms_cancel_is_green_as_written(tmp_path: Path) -> None:
    """What is left of the sum is less than the rounding of its terms in float32."""
    op = find(new_op("cancelling", tmp_path).folder)

    def make(seed: int) -> dict[str, Any]:
        half = torch.randn(192, 1, generator=torch.Generator().manual_seed(seed))
        return {"x": torch.cat((half, half)), "weight": torch.ones(1)}

    def cancel(grad: torch.Tensor, _: int) -> torch.Tensor:
        return torch.cat((grad[:192], -grad[:192] * (1 + 2**-20)))

    case = Case(name="cancels", make=make, incoming=cancel)
    report = check(op, implementation="torch", isolated=False, device="cpu", cases=[case], seed=3)
    faults = [each.message for each in report.faults if each.check == "backward"]
    assert faults == []
    assert any(each.check == "backward" for each in report.findings)
