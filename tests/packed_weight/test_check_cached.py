"""Cached keys and values that are neither numbers of x's dtype nor codes with scales."""

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.packed_weight.cached_rows import check_cached

X, ROWS = torch.zeros(2), torch.zeros(1, 2, 3, 8)
CODES, SCALES = ROWS.to(torch.int8), torch.ones(1, 2, 3)
# of 4 bits
HALVES, PAIRS = ROWS[..., :4].to(torch.uint8), torch.ones(1, 2, 3, 2).bfloat16()


@pytest.mark.parametrize(
    ("keys", "values", "key_scales", "value_scales", "message"),
    [
        (ROWS.half(), ROWS, None, None, r"op: x is torch.float32, keys torch.float16"),
        (CODES, ROWS.to(torch.float8_e4m3fn), SCALES, SCALES, "both int8, both float8_e4m3fn"),
        (CODES, CODES, None, SCALES, "keys are torch.int8, key_scales None"),
        (CODES, CODES, SCALES, None, "value_scales None"),
        (ROWS, ROWS, SCALES, SCALES, "keys are torch.float32, key_scales given"),
        (CODES, CODES, SCALES[0], SCALES, r"key_scales are torch.float32 \[2, 3\]"),
        (CODES, CODES, SCALES, SCALES.half(), "value_scales are torch.float16"),
        (HALVES, HALVES, SCALES, SCALES, r"they must be torch.bfloat16 \[1, 2, 3, 2\]"),
        (HALVES, CODES, PAIRS, SCALES, "keys torch.uint8, values torch.int8"),
    ],
)
def test_what_is_refused(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
    message: str,
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_cached("op", "x", X, keys, values, key_scales, value_scales)


def test_what_is_taken() -> None:
    check_cached("op", "x", X, ROWS, ROWS, None, None)
    check_cached("op", "x", X.half(), CODES, CODES, SCALES, SCALES)
    check_cached("op", "x", X.half(), HALVES, HALVES, PAIRS, PAIRS)
