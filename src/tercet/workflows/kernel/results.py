"""Arguments and results of the kernel calls, short enough for an agent to read."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tercet.records import Outcome


class Calls(BaseModel):
    """Selects calls of an op: one call of the given sizes, or the op's calls in a catalog model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: dict[str, int] | None = Field(None, description="Size of every axis of the op.")
    model: str | None = Field(None, description="A model of the catalog, in place of sizes.")
    dtype: str = Field("bfloat16", description="bfloat16, float16 or float32.")
    options: dict[str, Any] = Field({}, description="The op's options, such as residual: true.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share each layer.")
    tokens: int | None = Field(None, description="With model: tokens per call; null: 16384.")


class OpSummary(BaseModel):
    """Description of an op.

    Attributes:
        name: the op's name, as the other calls take it.
        folder: directory of the op's files.
        meaning: first line of the op's documentation.
        axes: what each axis means, by axis name.
        tensors: "role [axes] dtypes" of each tensor, by tensor name.
        differentiable: inputs that have a gradient.
        implementations: "name (language)" of each implementation, preferred first.
        baselines: names of the baselines that bench compares the op with.
        cases: number of cases that check runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    folder: str
    meaning: str
    axes: dict[str, str]
    tensors: dict[str, str]
    differentiable: tuple[str, ...]
    implementations: tuple[str, ...]
    baselines: tuple[str, ...]
    cases: int


class CaseSummary(BaseModel):
    """A case of an op: the name that check takes, and whether it checks the gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    gradient: bool


class Choice(BaseModel):
    """Whether an implementation may run, whether selection takes it, and the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    allowed: bool
    chosen: bool
    reason: str


class Fault(BaseModel):
    """One failed check.

    Attributes:
        implementation: the implementation that failed.
        case: the case (input) that it failed on.
        check: the property that was checked.
        message: what is wrong, in words.
        errors: for each wrong tensor: the size of the error, its position and the values there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    case: str
    check: str
    message: str
    errors: tuple[str, ...]


class CheckSummary(BaseModel):
    """Summary of a check; passed checks are only counted.

    Attributes:
        op, device: the op that was checked, and on which device.
        seed: RNG seed of the inputs; the same seed gives the same inputs again.
        passed: true if at least one check ran and none failed.
        green, red: number of passed and of failed checks, by implementation.
        skipped: why an implementation cannot run here, by implementation.
        faults: the first failed checks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    passed: bool
    green: dict[str, int]
    red: dict[str, int]
    skipped: dict[str, str]
    faults: tuple[Fault, ...]


class Timing(BaseModel):
    """One row of a benchmark.

    Attributes:
        settings: variant, direction, workload, sizes, dtype, options, cache (cold or warm), launch
            (graph or eager), binds (the roofline's limit: memory or compute), revision.
        outcome, reason: whether the time is valid, and if not, why.
        metrics: time_us with its 95 % confidence interval, floor_us (the roofline's time),
            roofline_fraction, bytes_per_second and more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, str | int | float | bool | None]
    outcome: Outcome
    reason: str | None
    metrics: dict[str, float]


class BenchSummary(BaseModel):
    """Summary of a benchmark: its rows without their environments.

    Attributes:
        op, device: the op that was timed, and on which device.
        seed: RNG seed of the inputs.
        passed: true if no implementation failed.
        copy_bytes_per_second: memory bandwidth measured in this run, the roofline of memory-bound
            rows.
        timings: one for each variant, call, direction, cache and launch.
        faults: failed checks; a failed implementation is not timed, or its time is not valid.
        written: the file to which the full records were appended.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    passed: bool
    copy_bytes_per_second: float
    timings: tuple[Timing, ...]
    faults: tuple[Fault, ...]
    written: str | None


class RegressSummary(BaseModel):
    """Changes between two versions; unchanged rows are only counted.

    Attributes:
        device: the device that both versions were measured on.
        before, after: the two versions.
        passed: true if no row regressed.
        summary: number of rows with each verdict.
        regressions, improvements: the changed rows, in words.
        other: rows that only one version has.
        notes: what to know about how the rows were compared.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str
    before: str
    after: str
    passed: bool
    summary: str
    regressions: tuple[str, ...]
    improvements: tuple[str, ...]
    other: tuple[str, ...]
    notes: tuple[str, ...]
