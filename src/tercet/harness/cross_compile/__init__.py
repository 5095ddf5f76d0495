"""Cross-compile: every kernel of an op for GPUs that this machine does not have.

Nothing is declared by an op's author: the launches are captured by running each implementation on
tensors without memory, at the shapes of production, in a process of its own.
"""

from tercet.harness.cross_compile.baseline import accept, baseline_path, judge, read_baseline
from tercet.harness.cross_compile.report import CompileReport, CompileRow, Resources
from tercet.harness.cross_compile.reuse import ALL
from tercet.harness.cross_compile.run import as_records, cross_compile
from tercet.harness.cross_compile.target import TARGETS
from tercet.harness.cross_compile.workloads import MODELS

__all__ = [
    "ALL",
    "MODELS",
    "TARGETS",
    "CompileReport",
    "CompileRow",
    "Resources",
    "accept",
    "as_records",
    "baseline_path",
    "cross_compile",
    "judge",
    "read_baseline",
]
