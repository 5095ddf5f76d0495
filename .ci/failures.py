"""Prints the failed tests of a JUnit report with their last lines: the end of a red log."""

import sys
from pathlib import Path
from xml.etree import ElementTree

_LINES = 6
_MOST = 40


def describe(junit: Path) -> str:
    """Name and last lines of each test that failed."""
    found: list[str] = []
    for case in ElementTree.parse(junit).iter("testcase"):
        for wrong in (*case.iter("failure"), *case.iter("error")):
            told = (wrong.text or wrong.attrib.get("message", "")).strip().splitlines()
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
            found.append("\n".join((f"ci: failed: {name}", *(f"    {x}" for x in told[-_LINES:]))))
    left = [f"ci: and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return "\n".join((*found[:_MOST], *left, f"ci: {len(found)} failed"))


if __name__ == "__main__":
    print(describe(Path(sys.argv[1])))
