"""Calibration sequences are cut from a text evenly, and overlap only where it is short."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tercet.compress.plan import Calibration
from tercet.compress.text import (
    _starts,  # pyright: ignore[reportPrivateUsage]
    calibration_tokens,
    read_calibration,
)
from tercet.errors import PlanError


@pytest.mark.parametrize(
    ("sequences", "starts"), [(2, [0, 50]), (4, [0, 25, 50, 75]), (5, [0, 20, 40, 60, 80])]
)
def test_starts_are_spread_over_the_text(sequences: int, starts: list[int], tmp_path: Path) -> None:
    found = cut(tmp_path, sequences, 20)
    assert found == [list(range(start, start + 20)) for start in starts]


def test_a_short_text_gives_overlapping_sequences(tmp_path: Path) -> None:
    assert cut(tmp_path, 10, 20) == [
        list(range(start, start + 20)) for start in (0, 8, 17, 26, 35, 44, 53, 62, 71, 80)
    ]
    with pytest.raises(PlanError, match="100 tokens, but the plan asks for 11 sequences of 20"):
        cut(tmp_path, 11, 20)
    with pytest.raises(PlanError, match="100 tokens, but the plan asks for 1 sequences of 101"):
        cut(tmp_path, 1, 101)


def cut(folder: Path, sequences: int, length: int) -> list[list[int]]:
    """Of a text of 100 tokens, 0 to 99."""
    words = [f"w{i}" for i in range(100)]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    path = folder / "text.txt"
    path.write_text(" ".join(words))
    wanted = Calibration(sequences=sequences, length=length)
    return calibration_tokens(path, folder, wanted).tolist()


@given(data=st.data(), length=st.integers(1, 30), count=st.integers(1, 40))
def test_sequences_that_measure_overlap_no_other(data: Any, length: int, count: int) -> None:
    apart = sorted(data.draw(st.sets(st.integers(0, count - 1), max_size=count)))
    tokens = data.draw(st.integers(length, 2 * length * count))
    starts = _starts(tokens, Calibration.model_construct(sequences=count, length=length), apart)
    first_ones = sum(at not in apart and at - 1 in (*apart, -1) for at in range(count))
    whole = len(apart) + first_ones
    if starts is None:
        few = tokens < whole * length
        assert few or 2 * (tokens - len(apart) * length) < (count - len(apart)) * length
        return
    assert len(starts) == count
    assert starts[0] >= 0
    assert starts[-1] + length <= tokens
    rows = [set(range(start, start + length)) for start in starts]
    for at in apart:
        assert not any(rows[at] & row for other, row in enumerate(rows) if other != at)
    assert starts == sorted(starts)


@pytest.mark.parametrize("given", [["a text"], [[1, 2]], {"text": "a"}])
def test_data_in_memory_is_a_tensor_of_ids(given: Any, tmp_path: Path) -> None:
    message = f"a {type(given).__name__} in the place of calibration data: .* as a tensor"
    with pytest.raises(PlanError, match=message):
        read_calibration(given, tmp_path, Calibration(sequences=1, length=8))
