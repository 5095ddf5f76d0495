"""compare: limits, NaN, infinities, integers, the worst place."""

import pytest
import torch

from tercet.harness.check.compare import compare, row_magnitude

ONE = torch.ones(2, 3, dtype=torch.float64)


def worst(found: torch.Tensor, expected: torch.Tensor, relative: float = 0.01) -> float:
    return compare("y", found, expected.double(), expected.double().abs(), relative).worst


def test_shows_where_it_is_worst() -> None:
    found = ONE.float()
    found[1, 2] = 1.05
    found[0, 0] = 0.98
    summary = compare("y", found, ONE, ONE, 0.01)
    assert summary.index == (1, 2)
    assert summary.worst == pytest.approx(5.0, rel=1e-3)
    assert (summary.found, summary.expected) == (pytest.approx(1.05), 1.0)
    assert (summary.wrong, summary.elements) == (2, 6)
    assert summary.largest == pytest.approx(0.05, rel=1e-4)
    assert "worst 5x the limit at [1, 2]: 1.05, expected 1 +- 0.01; 2 of 6 wrong" in str(summary)


def test_a_smallest_normal_is_always_allowed() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal
    assert worst(torch.tensor([tiny * 0.9]), torch.tensor([0.0])) < 1
    assert worst(torch.tensor([tiny * 1.1]), torch.tensor([0.0])) > 1


def test_nan_and_infinities_must_be_where_the_reference_has_them() -> None:
    nan, inf = torch.nan, torch.inf
    special = torch.tensor([nan, inf, -inf, 1.0])
    assert worst(special, special) == 0.0
    for wrong in ([0.0, inf, -inf, 1.0], [nan, nan, -inf, 1.0], [nan, inf, inf, 1.0], [nan] * 4):
        assert worst(torch.tensor(wrong), special) > 1, wrong


def test_nan_may_be_for_an_infinity_whose_magnitude_is_nan_and_nowhere_else() -> None:
    nan, inf = torch.nan, torch.inf
    expected = torch.tensor([inf, inf, -inf, 1.0], dtype=torch.float64)
    magnitude = torch.tensor([nan, inf, nan, nan], dtype=torch.float64)

    def worst_of(*found: float) -> float:
        return compare("y", torch.tensor(found), expected, magnitude, 0.01).worst

    for right in ((nan, inf, nan, 1.0), (inf, inf, -inf, 1.0)):
        assert worst_of(*right) == 0.0
    for wrong in (
        (nan, nan, nan, 1.0),
        (nan, inf, nan, nan),
        (3.0, inf, nan, 1.0),
        (-inf, inf, nan, 1.0),
        (nan, inf, nan, 1.1),
    ):
        assert worst_of(*wrong) > 1, wrong


def test_overflow_of_the_dtype_is_no_error_but_only_beyond_its_largest_number() -> None:
    inf = torch.tensor([torch.inf], dtype=torch.float16)
    assert worst(inf, torch.tensor([70000.0])) == 0.0
    assert worst(inf, torch.tensor([60000.0])) > 1
    # 65520 and more are infinite in float16: within the limit of one number, not of the other
    assert worst(inf, torch.tensor([65500.0])) == 0.0
    assert worst(-inf, torch.tensor([65500.0])) > 1
    assert worst(inf, torch.tensor([65500.0]), relative=1e-4) > 1


def test_integers_are_exact_unless_a_tolerance_says_otherwise() -> None:
    codes = torch.tensor([3, -4], dtype=torch.int8)
    assert worst(codes, codes, 0.0) == 0.0
    assert worst(codes, codes + 1, 0.0) > 1
    one = torch.ones(2, dtype=torch.float64)
    assert compare("codes", codes, (codes + 1).double(), one, 1.0).worst == 1.0


def test_native_error_stands_beside() -> None:
    native = ONE.float() * 1.02
    summary = compare("y", ONE.float(), ONE, ONE, 0.01, native)
    assert summary.native_worst == pytest.approx(2.0, rel=1e-4)


def test_row_magnitude() -> None:
    x = torch.tensor([[1.0, -3.0], [0.5, torch.inf]])
    assert row_magnitude(x).tolist() == [[3.0, 3.0], [0.5, 0.5]]
    assert row_magnitude(torch.tensor([1.0, -2.0])).tolist() == [2.0, 2.0]
    assert row_magnitude(torch.empty(0, 4)).shape == (0, 4)
