"""The program that Nsight Compute watches: `python -m tercet.harness.profile.driver REQUEST`.

It warms the call up, unwatched, and does it once between cudaProfilerStart and cudaProfilerStop.
"""

import sys
from typing import Any

import torch

from tercet.harness.profile.call import Request, prepare_call

_WARM_UP = 3


def main(request: Request) -> None:
    """Does the requested call once under the profiler's eyes."""
    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    with prepare_call(request) as call:
        for _ in range(_WARM_UP):
            call.run()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        call.run()
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    main(Request.model_validate_json(sys.argv[1]))
