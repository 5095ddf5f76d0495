"""Confine: what a judged process may still do to others, which is nothing.

Linux's Landlock leaves it the files that it needs, seccomp takes the system calls that reach into
other processes, other sessions and the network; both need no privilege and cannot be undone. What
it starts stays in its process group, which the parent ends. What a platform lacks is said.
(Linux: Documentation/userspace-api/landlock.rst and seccomp_filter.rst.)
"""

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_SET_FILTER = 1
_FAST = 1 << 2  # SECCOMP_FILTER_FLAG_SPEC_ALLOW: else older kernels slow the whole process down
_PATH_BENEATH = 1
_NEWEST = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION: asks for the version, makes nothing

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
# of landlock.h, by the version that brought them: make and remove entries (1), rename across
# folders (2), truncate (3), ioctl on devices (5)
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
_OF_FILES = _EXECUTE | _WRITE | _READ | 0x4000 | 0x8000
_CONNECT_AND_BIND = 0b11  # since version 4
_SIGNALS_AND_SOCKETS = 0b11  # since version 6

# name -> number on x86-64 and on Arm
_CALLS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (180, 180),
}
_SOCKET = (41, 198)
_SECCOMP = (317, 277)
_OTHER_ABI = 0x40000000  # x86-64's calls once more, under other numbers
_UNIX = 1  # the only kind of socket that stays
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM

# that libraries read of their own process, of the machine and of the GPU's driver
_PROC = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/devices",
    "/proc/driver", "/proc/modules", "/proc/mounts", "/proc/sys/vm", "/proc/sys/kernel",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/nvidia-caps")


def confine(*, writable: Iterable[str], file_bytes: int) -> list[str]:
    """Closes this process in, for good.

    Args:
        writable: folders that it may write to; everything else can be read but for /proc.
        file_bytes: the largest file that it may write.

    Returns:
        The guarantees that are missing here, in words; empty where all hold.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
        where = f"{sys.platform} on {platform.machine()}"
        return [
            f"files, other processes and the network are within its reach: {where} has no Landlock"
        ]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return [*_landlock(libc, writable), *_seccomp(libc)]


def _landlock(libc: ctypes.CDLL, writable: Iterable[str]) -> list[str]:
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _NEWEST)
    if version < 1:
        return ["files and other processes are within its reach: this kernel has no Landlock"]
    rights = max(mask for since, mask in _FILE_RIGHTS.items() if since <= version)
    network = _CONNECT_AND_BIND if version >= 4 else 0
    scoped = _SIGNALS_AND_SOCKETS if version >= 6 else 0
    # the kernel takes a shorter structure from whoever knows less of it
    fields = 3 if version >= 6 else 2 if version >= 4 else 1
    wanted = struct.pack("=QQQ", rights, network, scoped)[: 8 * fields]
    rules = libc.syscall(_LANDLOCK_CREATE, wanted, ctypes.c_size_t(len(wanted)), 0)
    if rules < 0:
        return [f"files are within its reach: Landlock says {os.strerror(ctypes.get_errno())}"]
    reading = _EXECUTE | _READ | _LIST
    for entry in Path("/").iterdir():
        if entry.name != "proc":
            _allow(libc, rules, entry, reading & rights)
    for path in (*_PROC, f"/proc/{os.getpid()}"):
        _allow(libc, rules, Path(path), reading & rights)
    devices = (*_DEVICES, *(str(path) for path in Path("/dev").glob("nvidia*")))
    for path in devices:
        _allow(libc, rules, Path(path), rights & (_OF_FILES | _LIST))
    for path in writable:
        _allow(libc, rules, Path(path), rights)
    done = libc.syscall(_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)
    if done:
        return [f"files are within its reach: Landlock says {os.strerror(ctypes.get_errno())}"]
    missing: list[str] = []
    if version < 6:
        missing.append(f"it can send signals: Landlock is of version {version}, that needs 6")
    return missing


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    """Grants rights beneath a path; one that is not there needs none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not path.is_dir():
                rights &= _OF_FILES
            rule = struct.pack("=Qi", rights, descriptor)
            libc.syscall(_LANDLOCK_ADD, rules, _PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)


def _seccomp(libc: ctypes.CDLL) -> list[str]:
    """A filter in BPF: load the number, compare, refuse with EPERM."""
    column, machine = _MACHINES[platform.machine()]
    numbers = [each[column] for each in _CALLS.values()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    # struct seccomp_data: the call at 0, the machine at 4, the first argument at 16; `yes` and `no`
    # are how many steps to skip
    count = len(numbers)
    program = [
        step(load, 0, 0, 4),
        step(equal, 0, count + 6, machine),
        step(load, 0, 0, 0),
        step(at_least, count + 4, 0, _OTHER_ABI),
        *(step(equal, count + 3 - at, 0, number) for at, number in enumerate(numbers)),
        step(equal, 0, 2, _SOCKET[column]),
        step(load, 0, 0, 16),
        step(equal, 0, 1, _UNIX),
        step(give, 0, 0, _ALLOW),
        step(give, 0, 0, _REFUSE),
    ]
    octets = b"".join(program)
    held = ctypes.create_string_buffer(octets, len(octets))
    header = struct.pack("=H6xQ", len(program), ctypes.addressof(held))
    if libc.syscall(_SECCOMP[column], _SET_FILTER, _FAST, ctypes.c_char_p(header)):
        return [
            f"other processes are within its reach: seccomp says {os.strerror(ctypes.get_errno())}"
        ]
    return []
