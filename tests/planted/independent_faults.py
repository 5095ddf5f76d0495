"""How many faults are found that were written by somebody who had not seen the checks.

    python tests/planted/independent_faults.py [--records FILE] [NAME ...]

runs `check` on each kernel of `independent/` until something is red, in a process of its own where
the fault is about processes, settings or the judge; and all of it on the right but unusual ones of
`independent_right/`. Appends a record of kind "check" for each: the checks that were red, or that
none was. All take half an hour of one core. The tests do not run them: they are there to measure
the checks, which are not to be fitted to them.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted.catalog import FOLDER, Planted, find_op, planted

from tercet.harness.check.run import CheckReport, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.kernel.interpreter.corrections import correct, interpreting
from tercet.records import Environment, Outcome, Record, append

INDEPENDENT = FOLDER / "independent"
INDEPENDENT_RIGHT = FOLDER / "independent_right"
RECORDS = Path(__file__).parents[2] / "benchmarks" / "planted" / "independent-cpu.jsonl"
_SECONDS = 30.0
# what a process of its own is for, besides the hostile ones: rare calls and other processes
_APART = ("processes", "rarely", "five_hundred", "clock")


def main() -> None:
    """Runs all, or those that are named, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    if interpreting():
        correct()
    warnings.simplefilter("ignore")
    environment = Environment.here(None)
    for fault in (*planted(INDEPENDENT), *planted(INDEPENDENT_RIGHT)):
        if given.names and fault.name not in given.names:
            continue
        begin = time.monotonic()
        report = judge(fault)
        red = sorted({finding.check for finding in report.faults})
        expected = bool(red) == bool(fault.caught_by)
        said = "green, though" if fault.caught_by else "red, though right"
        record = Record(
            kind="check",
            subject=fault.op,
            settings={"implementation": fault.name, "device": "cpu", "red": ", ".join(red)},
            metrics={"red": len(red), "seconds": time.monotonic() - begin} if expected else {},
            outcome=Outcome.OK if expected else Outcome.WRONG,
            reason=None if expected else f"{said}: {fault.about}",
            environment=environment,
        )
        append(given.records, [record])
        print(f"{fault.name}: {', '.join(red) or 'GREEN'}", flush=True)


def judge(fault: Planted) -> CheckReport:
    """The check of one, with everything where it has a process of its own."""
    apart = fault.hostile or any(word in fault.name for word in _APART)
    return check(
        find_op(fault.op),
        candidate=candidate_from(fault.path),
        device="cpu",
        isolated=apart,
        integration=apart,
        until_red=bool(fault.caught_by),
        seconds=_SECONDS,
    )


if __name__ == "__main__":
    main()
