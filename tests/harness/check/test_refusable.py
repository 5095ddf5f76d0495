"""Inputs that an implementation may refuse: UnsupportedError is right there, all else is not."""

from pathlib import Path

import pytest

from tercet.harness.check.run import cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.ops.discover import find

OP = find("embedding_packed")
HEAD = """
from tercet.errors import UnsupportedError
from tercet.ops.embedding_packed import torch_path

def forward(ids, weight, dtype):
    rows = weight.shape[0]
    wrong = bool(((ids < 0) | (ids >= rows)).any())
"""
REFUSES = "    if wrong:\n        raise UnsupportedError('an id is no row')\n"
CALL = "    return torch_path.forward(ids, weight, dtype)\n"


def red(tmp_path: Path, body: str, case: str, isolated: bool) -> list[str]:
    path = tmp_path / "candidate.py"
    path.write_text(HEAD + body, encoding="utf-8")
    report = check(
        OP,
        candidate=candidate_from(path),
        device="cpu",
        isolated=isolated,
        cases=cases_of(OP, [case]),
        drawn=0,
        integration=False,
    )
    return [fault.check for fault in report.faults]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("case", ["negative-id", "id-past-the-last", "id-past-32-bits"])
def test_a_refusal_is_right(tmp_path: Path, case: str, isolated: bool) -> None:
    assert red(tmp_path, REFUSES + CALL, case, isolated) == []


def test_nan_is_right(tmp_path: Path) -> None:
    body = (
        "    y = torch_path.forward(ids.clamp(0, rows - 1), weight, dtype)\n"
        "    y[(ids < 0) | (ids >= rows)] = float('nan')\n"
        "    return y\n"
    )
    assert red(tmp_path, body, "negative-id", isolated=False) == []


@pytest.mark.parametrize(
    "body",
    [
        CALL.replace("ids,", "ids.clamp(0, rows - 1),"),
        CALL.replace("ids,", "ids % rows,"),
        "    if wrong:\n        raise ValueError('an id is no row')\n" + CALL,
    ],
    ids=["clamped", "wrapped round", "an error of another kind"],
)
@pytest.mark.parametrize("isolated", [False, True])
def test_all_else_is_wrong(tmp_path: Path, body: str, isolated: bool) -> None:
    assert "forward" in red(tmp_path, body, "negative-id", isolated)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("wrong", ["negative", "past-the-last"])
def test_one_wrong_id_of_more_than_the_table_has_rows(
    tmp_path: Path, place: str, wrong: str
) -> None:
    """A refusal is right; torch's own error, from a lookup in the whole table, is not."""
    case = f"{place}-of-many-{wrong}"
    assert red(tmp_path, REFUSES + CALL, case, isolated=False) == []
    looked_up = (
        "    if ids.numel() > rows and wrong:\n        raise IndexError('an id is no row')\n"
    )
    assert "forward" in red(tmp_path, looked_up + CALL, case, isolated=False)


def test_what_is_no_wrong_input_may_not_be_refused(tmp_path: Path) -> None:
    assert "forward" in red(tmp_path, REFUSES.replace("wrong", "True") + CALL, "int32-ids", False)
