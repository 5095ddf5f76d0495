"""Without a GPU, Triton's kernels are interpreted: this must be said before triton is imported."""

import os

import pytest

if not os.path.exists("/dev/nvidia0"):
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

from tercet.kernel.interpreter import correct, interpreting

if interpreting():
    correct()

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# files whose tests take up to minutes each: begun last, one would keep the other cores waiting
_LONG = ("test_every_op_compiles.py", "test_every_op.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests come first, in the order of their files above."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else 9)
