"""Pages: an anonymous file whose pages two processes map."""

import fcntl
import os
import sys

from tercet.errors import UnsupportedError

ALIGN = 256
# of Linux's fcntl.h, where Python has no name for it
_SEAL = getattr(fcntl, "F_ADD_SEALS", 1033)
_NO_RESIZE = 0x0001 | 0x0002 | 0x0004  # no more seals, no shrinking, no growing


def whole_pages(size: int) -> int:
    """The next size of which both halves are aligned."""
    return -(-size // (2 * ALIGN)) * 2 * ALIGN


def anonymous_file(size: int) -> int:
    """The descriptor of a file of that size without a name, which cannot shrink or grow."""
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError(
            f"an isolated check needs memory that two processes share, which is made with "
            f"memfd_create: {sys.platform} has none; check on Linux"
        )
    descriptor = os.memfd_create("tercet-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    # a child that shrank it would end the judge, which reads there
    fcntl.fcntl(descriptor, _SEAL, _NO_RESIZE)
    return descriptor
