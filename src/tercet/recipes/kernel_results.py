"""What the kernel calls take and return, short enough for an agent to read."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tercet.records import Outcome


class Calls(BaseModel):
    """Which calls of an op are meant: one of these sizes, or those in a published model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: dict[str, int] | None = Field(None, description="Every axis of the op -> its size.")
    model: str | None = Field(None, description="A model of the catalog, in place of sizes.")
    dtype: str = Field("bfloat16", description="bfloat16, float16 or float32.")
    options: dict[str, Any] = Field({}, description="The op's options, as residual: true.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share the model.")
    tokens: int | None = Field(None, description="Tokens in one call of the model.")


class OpSummary(BaseModel):
    """An op, described.

    Attributes:
        name: what the other calls take.
        folder: where its files are.
        meaning: the first line of its documentation.
        axes: name -> what runs along it.
        tensors: name -> "role [axes] dtypes".
        differentiable: inputs that have a gradient.
        implementations: best first, "name (language)".
        baselines: what the benchmark compares with.
        cases: how many inputs it is checked on.
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


class Choice(BaseModel):
    """Whether an implementation may run, whether it does, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    allowed: bool
    chosen: bool
    reason: str


class Fault(BaseModel):
    """One property that does not hold.

    Attributes:
        implementation, case, check: of what, on which input, which property.
        message: what is wrong, in words.
        errors: for each result that is off: how far, where, the values there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    case: str
    check: str
    message: str
    errors: tuple[str, ...]


class CheckSummary(BaseModel):
    """A check's report without what is green.

    Attributes:
        op, device, seed: what was checked, where; the seed gives the same inputs again.
        passed: whether something ran and nothing is wrong.
        green, red: implementation -> how many properties hold, how many do not.
        skipped: implementation -> why it cannot run here.
        faults: the first of the red ones.
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
            (graph or eager), binds (memory or compute), revision.
        outcome, reason: whether the time counts, and why not.
        metrics: time_us with its 95 % interval, floor_us, roofline_fraction, bytes_per_second, ...
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, str | int | float | bool | None]
    outcome: Outcome
    reason: str | None
    metrics: dict[str, float]


class BenchSummary(BaseModel):
    """A benchmark's rows, without the environment of each.

    Attributes:
        op, device, seed: what was timed, where, on which inputs.
        passed: whether nothing is wrong.
        copy_bytes_per_second: measured in this run: what memory-bound rows are judged by.
        timings: one for each variant, call, direction, cache and launch.
        faults: what is wrong with an implementation; it was not timed, or its time does not count.
        written: the file that the full records were appended to.
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
    """What changed between two versions; rows that are the same are only counted.

    Attributes:
        device, before, after: what was compared, measured where.
        passed: whether nothing regressed.
        summary: how many rows of each verdict.
        regressions, improvements, other: in words; other are rows that one side lacks.
        notes: what the reader has to know of how it was judged.
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
