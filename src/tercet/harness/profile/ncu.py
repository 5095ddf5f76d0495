"""Nsight Compute: a kernel's hardware counters, read from its command line tool."""

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from io import StringIO

from tercet.harness.profile.call import Request
from tercet.harness.profile.report import Counters

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle"),
    *("long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction"),
    *("not_selected", "short_scoreboard", "sleeping", "tex_throttle", "wait"),
)
_LIMIT = "launch__occupancy_limit_{}"
_LIMITS = ("blocks", "registers", "shared_mem", "warps", "barriers")
_ACCESS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{}.ratio"
_USE = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.pct"
# Counters' field -> metric
_METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
    "eligible_warps": "smsp__warps_eligible.avg.per_cycle_active",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "load_sectors": _ACCESS.format("ld"),
    "store_sectors": _ACCESS.format("st"),
    "load_use_percent": _USE.format("ld"),
    "store_use_percent": _USE.format("st"),
    # counts wgmma too, which the per-type counters (hmma) do not
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
# to microseconds, bytes and plain numbers, for versions of ncu with either spelling
_UNITS = {
    "nsecond": 1e-3,
    "ns": 1e-3,
    "usecond": 1.0,
    "us": 1.0,
    "msecond": 1e3,
    "ms": 1e3,
    "second": 1e6,
    "s": 1e6,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "byte/block": 1.0,
    "Kbyte/block": 1e3,
    "Mbyte/block": 1e6,
}
_MINUTES = 5


def counters(request: Request) -> tuple[Counters, ...] | str:
    """The counters of each kernel of one call, in a process of its own; or why there are none."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return "ncu is not on PATH: install Nsight Compute for hardware counters"
    if request.device != "cuda":
        return f"hardware counters are read on cuda, the call ran on {request.device}"
    command = [ncu, "--profile-from-start", "off", "--clock-control", "none"]
    command += ["--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(metrics(query_metrics(ncu)))]
    command += [sys.executable, "-m", "tercet.harness.profile.driver", request.model_dump_json()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60 * _MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return f"ncu did not end within {_MINUTES} minutes"
    return parse(done.stdout) or _why_nothing(done.stdout + done.stderr)


def metrics(available: Collection[str]) -> list[str]:
    """The names to ask for: one that the GPU lacks would make ncu profile nothing.

    Args:
        available: the base names that the GPU has; empty where ncu did not say.
    """
    wanted = [*_METRICS.values(), *map(_LIMIT.format, _LIMITS), *map(_STALL.format, _STALLS)]
    if not available:
        return wanted
    # launch__ metrics are not counters, and older versions do not list them
    return [
        name for name in wanted if name.split(".")[0] in available or name.startswith("launch__")
    ]


@cache
def query_metrics(ncu: str) -> frozenset[str]:
    """The base names of the metrics that this machine's GPU has."""
    done = subprocess.run(
        [ncu, "--query-metrics"], capture_output=True, text=True, timeout=120, check=False
    )
    return frozenset(re.findall(r"^(\w+__\w+)\s", done.stdout, re.MULTILINE))


def parse(output: str) -> tuple[Counters, ...]:
    """The kernels of ncu's raw page as CSV: a header, a row of units, a row for each launch."""
    lines = output.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        return ()
    header, units, *rows = csv.reader(StringIO("\n".join(lines[first:])))
    unit_of = dict(zip(header, units, strict=False))
    return tuple(
        _kernel(dict(zip(header, row, strict=True)), unit_of)
        for row in rows
        if len(row) == len(header)
    )


def _kernel(row: Mapping[str, str], units: Mapping[str, str]) -> Counters:
    def number(metric: str) -> float | None:
        text = row.get(metric, "").replace(",", "")
        if not re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", text):
            return None
        return float(text) * _UNITS.get(units.get(metric, ""), 1.0)

    def numbers(pattern: str, names: tuple[str, ...]) -> dict[str, float]:
        found = {name: number(pattern.format(name)) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    stalls = numbers(_STALL, _STALLS)
    return Counters(
        kernel=row["Kernel Name"],
        blocks_by=numbers(_LIMIT, _LIMITS),
        stalls=dict(sorted(stalls.items(), key=lambda stall: -stall[1])),
        **{field: number(metric) for field, metric in _METRICS.items()},
    )


def _why_nothing(output: str) -> str:
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "the driver keeps hardware counters from this user: run as root, or load the nvidia "
            "module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [line for line in output.splitlines() if "error" in line.lower()]
    return f"ncu profiled nothing: {(errors or output.splitlines()[-1:] or ['no output'])[-1]}"
