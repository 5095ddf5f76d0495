"""Change: the files that differ from where this branch left main."""

import subprocess
from pathlib import Path

MAIN = "main"


def list_files(root: Path) -> list[str]:
    """Every file of the repository that git does not ignore, by its path from the root."""
    return _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")


def list_changed(root: Path, main: str = MAIN) -> list[str]:
    """What was committed since the branch left main, is uncommitted, untracked or deleted."""
    base = _git(root, "merge-base", main, "HEAD")
    differing = _git(root, "diff", "-z", "--no-renames", "--name-only", base).split("\0")
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted({*differing, *untracked} - {""})


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout.strip("\n\0")
