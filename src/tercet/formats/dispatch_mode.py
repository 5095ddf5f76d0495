"""Whether torch's operations are watched, as by a fake tensor's mode, in this thread."""

from typing import Any

import torch

_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def in_dispatch_mode() -> bool:
    """Whether a dispatch mode is active in this thread.

    torch's own `is_in_torch_dispatch_mode` reads one flag of the whole process: where modes of two
    threads overlap and the first entered is the first left, it stays set for good.
    """
    return bool(_torch._len_torch_dispatch_stack())
