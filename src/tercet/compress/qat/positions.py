"""Positions: each row of a batch in training is one sequence, from its first token on.

transformers looks for several sequences in a row when it is given no mask. It reads the answer from
the device, so that each forward pass would begin with an empty queue, once all before it is done
(transformers 5.17 to 5.23). In a CUDA graph, where it cannot read, it builds a whole mask instead
(to 5.17 at any rate), and no flash attention runs: layers that were compiled without a mask would
be compiled anew, which a capture forbids.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def one_sequence_a_row() -> Generator[None]:
    """Within it, forward passes of transformers' models find no row of several sequences.

    Nor do they find that they are captured, for which they would make a mask.
    """
    from transformers import masking_utils

    module: Any = masking_utils
    with ExitStack() as stack:
        for name, replacement in _REPLACED.items():
            kept = getattr(module, name, None)
            if kept is not None:
                setattr(module, name, replacement)
                stack.callback(setattr, module, name, kept)
        yield


def _find_no_packing(position_ids: Any) -> None:
    """What transformers finds where positions count up by one."""
    del position_ids


def _see_no_tracing(tensor: Any = None) -> bool:
    """What transformers finds where nothing is captured."""
    del tensor
    return False


_REPLACED = {"find_packed_sequence_indices": _find_no_packing, "is_tracing": _see_no_tracing}
