"""Where the first value lies that is no number, however the values are cut up."""

from importlib import import_module

import pytest
import torch

from tercet.formats import first_broken


@pytest.mark.parametrize("at_once", [1, 3, 1 << 22])
def test_the_first_and_how_many(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tercet.formats.encode"), "_VALUES_AT_ONCE", at_once)
    values = torch.arange(30.0).reshape(3, 2, 5)
    assert first_broken(values) is None
    values[2, 1, 4] = torch.nan
    assert first_broken(values) == (1, (2, 1, 4))
    values[1, 0, 3], values[1, 1, 0] = torch.inf, -torch.inf
    assert first_broken(values) == (3, (1, 0, 3))
    assert first_broken(values.transpose(0, 2)) == (3, (0, 1, 1))
    assert first_broken(torch.tensor(torch.nan)) == (1, ())
    assert first_broken(torch.empty(3, 0)) is None
