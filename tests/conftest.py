"""Without a GPU, Triton's kernels are interpreted: this must be said before triton is imported."""

import os

if not os.path.exists("/dev/nvidia0"):
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

from tercet.kernel.interpreter import correct, interpreting

if interpreting():
    correct()

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
