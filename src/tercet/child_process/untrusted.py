"""Runs a Python program that nobody has read, such as a model's answer, and says how it ended.

The program gets a process of its own, an empty folder, no environment variables, limits on memory,
CPU time and file size, and what `confine` takes away: the network, other processes and writing
elsewhere. It can read files, but has no way to pass them on. What the platform cannot hold is
listed, not hidden.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = Path(__file__).with_name("untrusted_child.py")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a program ended.

    Attributes:
        error: why it did not come to its end, in words; None if it did.
        missing: guarantees that do not hold on this platform, in words.
    """

    error: str | None
    missing: tuple[str, ...]


def run_untrusted(
    program: str,
    *,
    cpu_seconds: int = 10,
    wall_seconds: float = 60.0,
    memory_bytes: int = 2 * 2**30,
) -> Ending:
    """Runs the program to its end, its own exit included among the errors.

    Args:
        program: Python source.
        cpu_seconds: of processor time; a busy machine does not change it.
        wall_seconds: for programs that wait.
        memory_bytes: of address space.
    """
    # a program that ends early cannot know what the child says after one that came to its end
    word = secrets.token_hex(16)
    receiver, sender = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM), str(sender), str(cpu_seconds), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=(sender,),
            start_new_session=True,
        )
        os.close(sender)
        timed_out = False
        try:
            process.communicate(json.dumps([word, program]).encode(), timeout=wall_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # and whatever it started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with os.fdopen(receiver, "rb") as stream:
            said = stream.read()
    return _read(said, word, "waited too long" if timed_out else _status(process.returncode))


def _read(said: bytes, word: str, otherwise: str) -> Ending:
    """The child's lines: first what is missing, then, if the program ended, [word, error]."""
    lines = said.split(b"\n")
    missing = tuple(map(str, json.loads(lines[0]))) if lines[0] else ()
    for line in lines[1:]:
        with suppress(ValueError, TypeError):
            said_by, error = json.loads(line)
            if said_by == word:
                return Ending(error=error, missing=missing)
    return Ending(error=otherwise, missing=missing)


def _status(code: int) -> str:
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return "took too much processor time"
    return f"ended the process itself (exit status {code})"
