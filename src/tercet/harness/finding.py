"""Finding: what one check found, for people and machines."""

from pydantic import BaseModel, ConfigDict

NOT_FINITE = 1e30
"""What a ratio is where the result is infinite or NaN and should not be."""


class ErrorSummary(BaseModel):
    """How far a result is from its reference.

    Attributes:
        tensor: which result: an output's name, or "gradient of NAME".
        worst: the largest |found - expected| / limit; over 1 is wrong.
        index: where that is.
        found, expected: the values there.
        limit: what |found - expected| may be there.
        median, p99, largest: of |found - expected|.
        wrong, elements: how many are over their limit, of how many.
        native_worst: the same ratio for the reference's own formula computed in the op's dtype;
            None where it was not computed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensor: str
    worst: float
    index: tuple[int, ...]
    found: float
    expected: float
    limit: float
    median: float
    p99: float
    largest: float
    wrong: int
    elements: int
    native_worst: float | None = None

    def __str__(self) -> str:
        native = ""
        if self.native_worst is not None:
            far = self.native_worst >= NOT_FINITE
            ratio = "is not finite" if far else f"{self.native_worst:.3g}x"
            native = f"; torch in that dtype {ratio}"
        return (
            f"{self.tensor}: worst {self.worst:.3g}x the limit at {list(self.index)}: "
            f"{self.found:.6g}, expected {self.expected:.6g} +- {self.limit:.2g}; "
            f"{self.wrong} of {self.elements} wrong{native}"
        )


class Finding(BaseModel):
    """One property of one implementation on one case.

    Attributes:
        implementation, case: what was checked, on which input.
        check: the property: forward, backward, guard, poison, determinism, inputs, stale, ...
        passed: whether it holds.
        message: what is wrong, in words, and where to look; empty when it holds.
        errors: how far each result is from its reference, where that was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    case: str
    check: str
    passed: bool
    message: str = ""
    errors: tuple[ErrorSummary, ...] = ()
