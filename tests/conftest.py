"""Without a GPU, Triton's kernels are interpreted: this must be said before triton is imported."""

import os

if not os.path.exists("/dev/nvidia0"):
    os.environ["TRITON_INTERPRET"] = "1"

from tercet.kernel.interpreter import correct, interpreting

if interpreting():
    correct()
