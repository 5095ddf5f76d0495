"""The process of an untrusted program: sets limits, closes itself in, runs it, says how it went.

Run by path, in Python's isolated mode: it imports nothing of the package but `confine.py`.
"""

import importlib.util
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Reads [word, program] from standard input; writes two lines to the descriptor given."""
    sender, cpu_seconds, memory_bytes = map(int, sys.argv[1:4])
    word, program = json.loads(sys.stdin.buffer.read())
    missing = _close_in(cpu_seconds, memory_bytes)
    os.write(sender, f"{json.dumps(missing)}\n".encode())
    error: str | None = None
    try:
        exec(compile(program, "<program>", "exec"), {})
    # whatever it raises is how it ended, SystemExit and KeyboardInterrupt included
    except BaseException as raised:  # noqa: BLE001
        error = f"{type(raised).__name__}: {str(raised)[:300]}"
    os.write(sender, f"{json.dumps([word, error])}\n".encode())
    os._exit(0)


def _close_in(cpu_seconds: int, memory_bytes: int) -> list[str]:
    missing: list[str] = []
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    for kind, most in limits.items():
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError) as error:
            missing.append(f"a limit of {most} cannot be set: {error}")
    if os.geteuid() == 0:
        missing.append("it can start processes, which end with it: root has no limit on them")
    confine: Any = _load("confine.py").confine
    return [*missing, *confine(writable=[os.getcwd()], file_bytes=1 << 20)]


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("confine", Path(__file__).with_name(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
