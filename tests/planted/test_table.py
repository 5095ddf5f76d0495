"""The page's table of runs with fresh seeds says what the records say, and what is missing."""

from planted.table import seeds

from tercet.records import Environment, Outcome, Record

HERE = Environment.here()


def record(op: str, implementation: str, runs: int, reason: str | None = None) -> Record:
    return Record(
        kind="check",
        subject=op,
        settings={"implementation": implementation},
        metrics={} if reason else {"runs": runs, "red": 0},
        outcome=Outcome.WRONG if reason else Outcome.OK,
        reason=reason,
        environment=HERE,
    )


def row(lines: list[str], op: str, implementation: str) -> str:
    (found,) = (line for line in lines if line.startswith(f"| {op} | {implementation} |"))
    return found.removeprefix(f"| {op} | {implementation} ")


def test_runs_flagged_and_missing() -> None:
    lines = seeds(
        {
            "cpu": [
                record("rms_norm", "torch", 3),
                record("layer_norm", "layer_norm_welford", 20),
                record("rms_norm", "torch", 20),
                record("softmax", "torch", 20),
                record("softmax", "torch", 0, "seed 7: forward:\nx | y"),
            ],
            "nvidia-h200": [record("rms_norm", "triton", 21)],
        }
    )
    assert lines[0] == (
        "| op | implementation | cpu: runs | flagged | nvidia-h200: runs | flagged |"
    )
    # the last record counts, green or not
    assert row(lines, "rms_norm", "torch") == "| 20 | 0 | not measured | not measured |"
    assert row(lines, "rms_norm", "triton") == "| not measured | not measured | 21 | 0 |"
    assert row(lines, "softmax", "torch") == (
        "| - | seed 7: forward: x \\| y | not measured | not measured |"
    )
    assert row(lines, "layer_norm", "layer_norm_welford").startswith("| 20 | 0 |")
    # CUDA C++ does not run on a CPU
    assert row(lines, "softmax", "cuda") == "| - | - | not measured | not measured |"


def test_every_row_has_as_many_cells_as_the_head() -> None:
    lines = seeds({"cpu": [], "nvidia-h200": []})
    assert {line.count("|") for line in lines} == {7}
    assert len(set(lines)) == len(lines)
