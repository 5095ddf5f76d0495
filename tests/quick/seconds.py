"""Seconds: how long each test took in a recorded run, so that a budget can be kept.

`python -m quick.seconds JUNIT.XML [SLOWER]` writes seconds.json from the report of a whole run.
Where other work ran beside it, SLOWER is how much slower it was than on an idle machine.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

RECORD = Path(__file__).with_name("seconds.json")
# tests from here on are recorded one by one
_SLOW = 0.5
# of a test that is in no record
UNKNOWN = 1.0


@dataclass(frozen=True, kw_only=True)
class FileSeconds:
    """Of one file of tests.

    Attributes:
        tests: how many there are.
        seconds: of all together, set-up included.
        slow: those that take longest -> seconds.
    """

    tests: int
    seconds: float
    slow: Mapping[str, float]

    def estimate(self, test: str) -> float:
        """Of one test, by its name in the file."""
        if test in self.slow:
            return self.slow[test]
        quick = self.tests - len(self.slow)
        return max(0.0, self.seconds - sum(self.slow.values())) / quick if quick else UNKNOWN


Seconds = dict[str, FileSeconds]


def read(path: Path = RECORD) -> Seconds:
    """File of tests -> what was recorded; {} where nothing was."""
    if not path.exists():
        return {}
    return {file: FileSeconds(**one) for file, one in json.loads(path.read_text("utf-8")).items()}


def estimate(seconds: Seconds, file: str, test: str) -> float:
    """Seconds of one test."""
    return seconds[file].estimate(test) if file in seconds else UNKNOWN


def summarize(junit: Path, slower: float = 1.0) -> Seconds:
    """The record of a run, from its JUnit report."""
    found: dict[str, dict[str, float]] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        if case.find("skipped") is None:
            file = case.attrib["classname"].replace(".", "/") + ".py"
            took = float(case.attrib["time"]) / slower
            found.setdefault(file, {})[case.attrib["name"]] = took
    return {
        file: FileSeconds(
            tests=len(times),
            seconds=round(sum(times.values()), 1),
            slow={test: round(took, 1) for test, took in sorted(times.items()) if took >= _SLOW},
        )
        for file, times in sorted(found.items())
    }


def write(seconds: Seconds, path: Path = RECORD) -> None:
    """One file of tests a line: a later record changes few lines."""
    lines = [f"  {json.dumps(file)}: {json.dumps(asdict(one))}" for file, one in seconds.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write(summarize(Path(sys.argv[1]), *map(float, sys.argv[2:])))
