"""Configuration outcome: what became of one configuration of a kernel."""

from pydantic import BaseModel, ConfigDict

from tercet.records import Outcome


class ConfigurationOutcome(BaseModel):
    """One configuration on one workload in one direction.

    Attributes:
        configuration: option -> value; empty for the kernel's own default.
        outcome: OK, WRONG (a wrong result) or FAILED (did not compile, took too many resources).
        reason: why it is not OK.
        time_us, time_us_low, time_us_high: the median and its 95 % interval, in the last race that
            it took part in; None where it is not OK. Times of different races are not comparable
            to the noise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    configuration: dict[str, int]
    outcome: Outcome
    reason: str | None = None
    time_us: float | None = None
    time_us_low: float | None = None
    time_us_high: float | None = None
