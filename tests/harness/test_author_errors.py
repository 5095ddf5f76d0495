"""What an author's half-written files raise: one line that names the file and the line, exit 2."""

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tercet.child_process import ChildError
from tercet.cli.main import main
from tercet.errors import UnsupportedError
from tercet.harness.check.run import check
from tercet.harness.new_op import new_op
from tercet.harness.sandbox.faults import fault_message
from tercet.harness.sandbox.isolate import Worker
from tercet.ops.discover import find

_NUMBERS = count()
_ROUNDED = (
    "x.double().relu().square() * weight.double()",
    "x.float().relu().square() * weight.float()",
)
Edit = Callable[[str, str, str], Path]


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """Makes a new op with one of its files changed; each under a name that was not imported."""

    def edit(file: str, old: str, new: str) -> Path:
        folder = Path(new_op(f"half_written_{next(_NUMBERS)}", tmp_path).folder)
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))
        return folder

    return edit


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("op.py", "import torch\n", "import torch\ndef f(((\n", r"op\.py, line \d+: SyntaxError"),
        ("cases.py", "from typing import Any\n", "1 / 0\n", r"cases\.py, line 3: ZeroDiv"),
        ("cases.py", "from typing import Any\n", "raise SystemExit(0)\n", "SystemExit"),
        ("op.py", "OP = Op(", "NO_OP = Op(", "it needs an OP, which is an Op; OP is None"),
        ("op.py", "OP = Op(", "OP = 7; ANOTHER = Op(", "OP is 7"),
        ("op.py", 'name="half_', 'name="other_half_', "give both one name"),
        ("op.py", 'differentiable=("x",', 'differentiable=("zzz",', "zzz, which is no input"),
        ("op.py", "relative=", "relative=-", "must be 0 or a positive number"),
        ("op.py", "torch.bfloat16)", '"bfloat16")', r"'x' has dtypes=\(.*: write a tuple, as in"),
        ("op.py", 'axes=("N",)', 'axes=("N")', "'weight' has axes='N': write a tuple, as in"),
        ("op.py", '("N",), dtypes=_DTYPES', '("N",), dtypes=(torch.float32)', "dtypes=torch"),
        ("op.py", "cases=CASES", "cases=CASES + CASES[:1]", "give each a name of its own"),
    ],
)  # fmt: skip
def test_an_op_that_cannot_be_imported(
    edited: Edit, file: str, old: str, new: str, message: str
) -> None:
    folder = edited(file, old, new)
    with pytest.raises(UnsupportedError, match=message) as raised:
        find(str(folder))
    assert str(folder) in str(raised.value) or folder.name in str(raised.value)


def test_a_file_that_is_missing(edited: Edit) -> None:
    folder = edited("op.py", "OP = Op(", "OP = Op(")
    (folder / "reference.py").unlink()
    with pytest.raises(UnsupportedError, match=r"op\.py, line \d+: ModuleNotFoundError"):
        find(str(folder))


def test_mended_it_is_found(edited: Edit) -> None:
    folder = edited("__init__.py", "", "raise ValueError('no')\n")
    with pytest.raises(UnsupportedError, match=r"__init__\.py, line 1: ValueError: no"):
        find(str(folder))
    (folder / "__init__.py").write_text("")
    assert find(str(folder)).name == folder.name


def test_a_folder_named_like_an_op_of_the_package(tmp_path: Path) -> None:
    made = new_op("my_swiglu", tmp_path)
    folder = Path(made.folder).rename(tmp_path / "swiglu")
    with pytest.raises(UnsupportedError, match="the package has an op 'swiglu' of its own"):
        find(str(folder))


def test_a_reference_that_is_not_exact_is_told_so(edited: Edit) -> None:
    op = find(str(edited("reference.py", *_ROUNDED)))
    report = check(op, implementation="torch", isolated=False, device="cpu", drawn=0)
    (fault,) = [each for each in report.faults if each.check == "gradcheck"]
    assert "gives torch.float32 for float64 arguments" in fault.message


_EXITS = ("__import__('sys').exit(0)", "__import__('os')._exit(0)")


@pytest.mark.parametrize("end", _EXITS)
def test_an_exit_is_no_green_check(edited: Edit, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    folder = edited("op.py", "import torch\n", f"import torch\n{end}\n")
    monkeypatch.setattr(sys, "argv", ["tercet", "kernel", "check", str(folder), "--quick"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_what_its_files_print_is_not_among_the_json(
    edited: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = edited("cases.py", "    return {", "    print('drawn')\n    return {")
    words = ["tercet", "kernel", "check", str(folder), "--case", "3-17-float32", "--json"]
    monkeypatch.setattr(sys, "argv", [*words, "--implementation", "torch"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["passed"] is True
    assert "drawn" in shown.err


@pytest.mark.parametrize("end", _EXITS)
@pytest.mark.parametrize("file", ["torch_path.py", "reference.py"])
def test_an_exit_inside_a_call_is_no_green_check(
    edited: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    file: str, end: str,
) -> None:  # fmt: skip
    folder = edited(file, "    return ", f"    {end}\n    return ")
    monkeypatch.setattr(sys, "argv", ["tercet", "kernel", "check", str(folder), "--quick"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"{folder / file}, line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("cases.py", "    return {", "    raise KeyError('size')\n    return {", "cases.py, line"),
        ("reference.py", "(x: Tensor", "(z: Tensor", "unexpected keyword argument 'x'"),
        ("reference.py", "    return ", "    return undefined + ", "reference.py, line"),
    ],
)
def test_what_its_own_files_raise_in_a_check(
    edited: Edit, file: str, old: str, new: str, message: str
) -> None:
    op = find(str(edited(file, old, new)))
    with pytest.raises(UnsupportedError) as raised:
        check(op, implementation="torch", isolated=False, device="cpu", drawn=0)
    assert message in str(raised.value)
    assert op.name in str(raised.value)


_FORMULA = "x.double().relu().square() * weight.double()"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            f"return {_FORMULA}",
            _FORMULA,
            r"reference gives NoneType; op\.py declares 1 output ",
        ),
        (f"return {_FORMULA}", f"return {_FORMULA}, x", r"reference gives Tensor, Tensor; op\.py"),
        (f"return {_FORMULA}", f"return ({_FORMULA}).T", r"gives y \[17, 3\], .* give \[3, 17\]"),
    ],
)
def test_a_reference_that_gives_other_outputs_than_declared(
    edited: Edit, old: str, new: str, message: str
) -> None:
    op = find(str(edited("reference.py", old, new)))
    case = next(each for each in op.cases if each.name == "3-17-float32")
    with pytest.raises(UnsupportedError, match=message):
        check(op, implementation="torch", isolated=False, device="cpu", cases=[case])


def test_a_fake_of_another_shape_is_a_finding(edited: Edit) -> None:
    folder = edited("op.py", "return x.new_empty(x.shape)\n", "return x.new_empty((3, 18))\n")
    op = find(str(folder))
    case = next(each for each in op.cases if each.name == "3-17-float32")
    report = check(op, implementation="torch", isolated=False, device="cpu", cases=[case])
    said = {each.check: each.message for each in report.faults if each.case == case.name}
    assert "[3, 17], its fake promises torch.float32 [3, 18]" in said["forward"]
    assert "the reference's y is [3, 17], the fake in op.py promises [3, 18]" in [
        each.message for each in report.faults if each.check == "opcheck"
    ]


def test_a_fake_of_two_results_for_a_schema_of_one(edited: Edit) -> None:
    folder = edited(
        "op.py", "return x.new_empty(x.shape)\n", "return x.new_empty(x.shape), x.new_empty(0)\n"
    )
    op = find(str(folder))
    with pytest.raises(UnsupportedError, match=r"its fake in op\.py gives something else than the"):
        check(op, implementation="torch", isolated=False, device="cpu", drawn=0)


def test_an_implementation_that_cannot_be_imported_is_one_finding(edited: Edit) -> None:
    folder = edited("torch_path.py", "import Tensor\n", "import Tensorr\n")
    op = find(str(folder))
    report = check(op, implementation="torch", device="cpu", location=str(folder))
    (fault,) = report.faults
    assert (fault.implementation, fault.case, fault.check) == ("torch", "*", "forward")
    assert "ImportError: cannot import name 'Tensorr'" in fault.message
    assert fault.message.endswith(f"({folder / 'torch_path.py'}, line 7)")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('a bad tile')", "ValueError: a bad tile"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ],
)
def test_what_a_kernel_raised_or_crashed_by_names_its_line(
    tmp_path: Path, body: str, message: str
) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(f"def forward():\n    deep()\n\ndef deep():\n    {body}\n")
    with Worker() as worker, pytest.raises(ChildError) as raised:
        worker.request(f"{file}:forward", {})
    said = fault_message(raised.value)
    assert message in said
    assert said.endswith(f"({file}, line 5)")
    assert len(said) < 400 + len(str(file))


def test_numbers_that_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        ["--seconds", "nan"],
        ["--memory-gib", "-3"],
        ["--seed", "-1"],
        ["--seed", "1" * 30],
    ):
        monkeypatch.setattr(sys, "argv", ["tercet", "kernel", "check", "rms_norm", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
