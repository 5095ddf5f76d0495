"""What cross-compiling an op found: a row for each kernel, variant and target."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tercet.harness.finding import Finding

Outcome = Literal["compiled", "refused", "skipped"]


class Resources(BaseModel):
    """The registers and memory of a compiled kernel, and the instructions in its assembly.

    Attributes:
        registers: of a thread.
        spills: bytes of a thread's registers that went to memory (its stack frame).
        shared_bytes: shared memory (LDS) of a block.
        wgmma, tcgen05, mma, mfma: matrix instructions of Hopper, of Blackwell, of any tensor core
            by warp, of CDNA.
        loads, stores: global memory instructions of a thread, asynchronous copies included.
        load_bits, store_bits: of the widest of them; 0 where there is none.
        load_bits_mean, store_bits_mean: over all of them.
        tma: bulk tensor copies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    registers: int
    spills: int
    shared_bytes: int
    wgmma: int = 0
    tcgen05: int = 0
    mma: int = 0
    mfma: int = 0
    loads: int = 0
    stores: int = 0
    load_bits: int = 0
    store_bits: int = 0
    load_bits_mean: float = 0.0
    store_bits_mean: float = 0.0
    tma: int = 0

    def instructions(self) -> dict[str, int]:
        """Kind -> count of the instructions that a kernel must not lose."""
        return {
            "wgmma": self.wgmma,
            "tcgen05": self.tcgen05,
            "mma": self.mma,
            "mfma": self.mfma,
            "tma": self.tma,
        }


class CompileRow(BaseModel):
    """One kernel, specialised as a launch in production specialises it, for one target.

    Attributes:
        implementation, kernel, target: "triton", "_forward", "sm_90".
        variant: argument types (":16" where divisible by 16), constants and launch options.
        workload: a call that launches it; not part of the row's identity.
        outcome: "compiled"; "refused" by the compiler or by the implementation's requirement;
            "skipped" where this machine has no compiler.
        reason: why it is not compiled.
        digest: of all that it was compiled from (`reuse.py`); None where that is not known.
        resources: of the compiled kernel.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    kernel: str
    target: str
    variant: str
    workload: str = ""
    outcome: Outcome
    reason: str | None = None
    digest: str | None = None
    resources: Resources | None = None

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What a baseline's row is found by."""
        return self.implementation, self.kernel, self.target, self.variant


ROWS = TypeAdapter(tuple[CompileRow, ...])


class CompileReport(BaseModel):
    """All rows of an op; `findings` are what is wrong with them.

    Attributes:
        has_baseline: whether the op has accepted rows to compare with: a new op has none, and an
            installed package has none of any op.
        reused: how many compilations were spared, since nothing that they depend on has changed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    rows: tuple[CompileRow, ...]
    findings: tuple[Finding, ...]
    has_baseline: bool
    reused: int = 0

    @property
    def passed(self) -> bool:
        """Whether nothing spills, and nothing was lost against the baseline."""
        return all(finding.passed for finding in self.findings)
