"""Record: mutation scores as records."""

from collections import Counter

from tercet.harness.mutate.run import MutationReport
from tercet.records import Environment, Outcome, Record


def records_of(report: MutationReport) -> list[Record]:
    """One record an implementation."""
    environment = Environment.here()
    found = list[Record]()
    for name, count in report.mutants.items():
        tried = [each for each in report.tried if each.implementation == name]
        ends = Counter(
            "explained" if each.reason
            else "unreached" if not each.reached
            else "survived" if each.by is None
            else "killed"
            for each in tried
        )  # fmt: skip
        found.append(
            Record(
                kind="mutate",
                subject=report.op,
                settings={"implementation": name, "device": report.device, "seed": report.seed},
                metrics={
                    "mutants": float(count),
                    **{
                        end: float(ends[end])
                        for end in ("killed", "survived", "explained", "unreached")
                    },
                },
                outcome=Outcome.OK,
                environment=environment,
            )
        )
    return found
