"""What a bench found, and the same as records."""

from statistics import median

from pydantic import BaseModel, ConfigDict

from tercet.records import Environment, Outcome, Record


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(_Frozen):
    """The median of the rounds, the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Range":
        """Of at least one value."""
        return cls(median=median(values), low=min(values), high=max(values))


class EngineReport(_Frozen):
    """One engine.

    Attributes:
        engine: its name and version.
        kind: what it holds most layers as, in its own words; None for Tercet's formats.
        size_bytes: of what it loads.
        load_s: seconds from its start to a model that can be asked, imports left out.
        prompt_tokens_per_s: of the prompt, up to the first new token.
        decode_tokens_per_s: of the tokens after the first.
        peak_resident_bytes: the median of its process; None where it is not measured.
        reason: why it was not measured; what is measured is None then.
    """

    engine: str
    kind: str | None = None
    size_bytes: int | None = None
    load_s: Range | None = None
    prompt_tokens_per_s: Range | None = None
    decode_tokens_per_s: Range | None = None
    peak_resident_bytes: int | None = None
    reason: str | None = None


class BenchReport(_Frozen):
    """All engines on one checkpoint.

    Attributes:
        directory: of the checkpoint.
        model: its model's name.
        format: that of most of its weights.
        device: that Tercet computed on.
        instructions: of a CPU, that Tercet computed with: the best that it has, or TERCET_CPU_ISA.
        prompt: tokens of the prompt.
        tokens: that were generated.
        rounds: how often each engine had its turn.
        threads: of each engine.
        load_before: the machine's load average of a minute before the first round.
        engines: Tercet first.
    """

    directory: str
    model: str
    format: str
    device: str
    instructions: str | None
    prompt: int
    tokens: int
    rounds: int
    threads: int
    load_before: float
    engines: tuple[EngineReport, ...]


def to_records(report: BenchReport) -> list[Record]:
    """One for each engine."""
    return [_record(report, engine) for engine in report.engines]


def _record(report: BenchReport, engine: EngineReport) -> Record:
    metrics = dict[str, float]()
    for name in ("load_s", "prompt_tokens_per_s", "decode_tokens_per_s"):
        found: Range | None = getattr(engine, name)
        if found is not None:
            metrics |= {name: found.median, f"{name}_low": found.low, f"{name}_high": found.high}
    for name in ("size_bytes", "peak_resident_bytes"):
        size: int | None = getattr(engine, name)
        if size is not None:
            metrics[name] = float(size)
    return Record(
        kind="export-speed",
        subject=engine.engine,
        settings={
            "checkpoint": report.directory,
            "model": report.model,
            "format": report.format,
            "kind": engine.kind,
            "device": report.device,
            "instructions": report.instructions,
            "prompt": report.prompt,
            "tokens": report.tokens,
            "rounds": report.rounds,
            "threads": report.threads,
            "load_before": report.load_before,
        },
        metrics=metrics,
        outcome=Outcome.OK if engine.reason is None else Outcome.FAILED,
        reason=engine.reason,
        environment=Environment.here(),
    )
