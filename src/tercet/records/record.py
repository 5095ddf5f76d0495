"""Record: one measurement, what was measured, how, where and with what outcome."""

from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tercet.records.environment import Environment

Setting = str | int | float | bool | None


class Outcome(StrEnum):
    """How a measurement ended. Only OK carries metrics: nothing can be fast and wrong."""

    OK = "ok"
    WRONG = "wrong"
    FAILED = "failed"


class Record(BaseModel):
    """One measurement.

    Attributes:
        kind: what was measured ("evaluation", "generation", ...).
        subject: of which thing (a model directory, an operation).
        settings: everything that was chosen.
        metrics: everything that was measured, units in the names; empty unless the outcome is OK.
        outcome: OK, WRONG (finished with a wrong result) or FAILED (did not finish).
        reason: why it is not OK.
        environment: where it ran.
        time: when, in UTC, ISO 8601.
    """

    # JSON has no infinity: a perplexity that overflows is the string "Infinity", and read as such
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    kind: str
    subject: str
    settings: dict[str, Setting] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    outcome: Outcome = Outcome.OK
    reason: str | None = None
    environment: Environment
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @model_validator(mode="after")
    def _only_good_results_carry_metrics(self) -> "Record":
        if self.outcome is not Outcome.OK and (self.metrics or not self.reason):
            raise ValueError("a record that is not OK has a reason and no metrics")
        if self.outcome is Outcome.OK and not self.metrics:
            raise ValueError("an OK record has metrics")
        return self
