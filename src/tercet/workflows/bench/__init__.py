"""How fast a packed checkpoint runs, here and in other engines, taking turns."""

from tercet.workflows.bench.report import BenchReport, EngineReport, Range, to_records
from tercet.workflows.bench.run import bench

__all__ = ["BenchReport", "EngineReport", "Range", "bench", "to_records"]
