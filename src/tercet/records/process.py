"""Memory of this process, measured."""

import resource
from pathlib import Path


def peak_resident_bytes() -> int:
    """The largest resident size of this process so far.

    From VmHWM where Linux has it: ru_maxrss also counts the parent's size at the moment of fork.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
