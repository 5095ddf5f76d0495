"""Record: mutation scores as records."""

from typing import get_args

from tercet.harness.mutate.run import End, MutationReport
from tercet.records import Environment, Outcome, Record


def records_of(report: MutationReport) -> list[Record]:
    """One record an implementation."""
    environment = Environment.here()
    found = list[Record]()
    for name, count in report.mutants.items():
        ends = report.ends(name)
        found.append(
            Record(
                kind="mutate",
                subject=report.op,
                settings={"implementation": name, "device": report.device, "seed": report.seed},
                metrics={
                    "mutants": float(count),
                    **{end: float(ends[end]) for end in get_args(End)},
                },
                outcome=Outcome.OK,
                environment=environment,
            )
        )
    return found
