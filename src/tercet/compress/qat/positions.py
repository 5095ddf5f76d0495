"""Positions: each row of a batch in training is one sequence, from its first token on.

transformers looks for several sequences in a row when it is given no mask. It reads the answer from
the device, so that each forward pass would begin with an empty queue, once all before it is done
(transformers 5.17 to 5.23). In a CUDA graph, where it cannot read, it builds a whole mask instead,
and no flash attention runs.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_LOOKS = "find_packed_sequence_indices"


@contextmanager
def one_sequence_a_row() -> Generator[None]:
    """Within it, forward passes of transformers' models find no row of several sequences."""
    from transformers import masking_utils

    module: Any = masking_utils
    kept = getattr(module, _LOOKS, None)
    if kept is None:
        yield
        return
    setattr(module, _LOOKS, _find_no_packing)
    try:
        yield
    finally:
        setattr(module, _LOOKS, kept)


def _find_no_packing(position_ids: Any) -> None:
    """What transformers finds where positions count up by one."""
    del position_ids
