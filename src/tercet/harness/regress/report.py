"""RegressReport: what changed between two versions, for people and machines."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tercet.harness.regress.noise import Noise

Verdict = Literal["regression", "improvement", "same", "missing", "new"]


class Change(BaseModel):
    """One metric of one row, before and after.

    Attributes:
        op, row, metric: what was measured: "rms_norm", "triton forward llama-3-8b norm", "time_us".
        before, after: its values; None where a side has none.
        limit: the ratio (times) or step (everything else) beyond which it counts.
        verdict: what it is.
        reason: in words, where numbers alone do not say it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    row: str
    metric: str
    before: float | None = None
    after: float | None = None
    limit: float | None = None
    verdict: Verdict
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """after / before."""
        if self.before and self.after is not None:
            return self.after / self.before
        return None

    def __str__(self) -> str:
        if self.reason:
            return f"{self.verdict}: {self.op} {self.row}: {self.reason}"
        ratio = f" ({self.ratio - 1:+.1%})" if self.ratio is not None else ""
        return (
            f"{self.verdict}: {self.op} {self.row}: {self.metric} {self.before:g} -> "
            f"{self.after:g}{ratio}"
        )


class RegressReport(BaseModel):
    """What changed between two versions on one device.

    Attributes:
        device: where both were measured.
        before, after: what they are called.
        noise: the noise of the times, by how they were taken ("graph", "eager", "rounds"): the
            host's own noise is in an eager time, and would hide what a graph's time shows.
        changes: every metric of every row.
        notes: what the reader has to know of how it was judged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str
    before: str
    after: str
    noise: dict[str, Noise]
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    def of(self, *verdicts: Verdict) -> tuple[Change, ...]:
        """The changes with one of these verdicts."""
        return tuple(change for change in self.changes if change.verdict in verdicts)

    @property
    def passed(self) -> bool:
        """Whether nothing regressed."""
        return not self.of("regression")

    def __str__(self) -> str:
        counts = ", ".join(
            f"{len(self.of(verdict))} {verdict}"
            for verdict in ("regression", "improvement", "same", "missing", "new")
        )
        return f"{self.before} -> {self.after} on {self.device}: {counts}"
