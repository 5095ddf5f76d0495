"""What a profile is made of: times on the host and the device, counters, and words."""

from pydantic import BaseModel, ConfigDict

from tercet.kernel.tuned import Direction


class KernelTime(BaseModel):
    """A kernel (on a CPU: a torch operation): launches a call, and its time in one call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    launches: float
    time_us: float


class Timeline(BaseModel):
    """One call, warm, among calls that follow each other.

    Attributes:
        kernels: longest first.
        launches: kernels, copies and fills a call.
        device_us: the device is busy.
        call_us: from one call to the next, launched eagerly, without a profiler.
        host_us: the host needs to issue a call; on a CPU it is the call itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernels: tuple[KernelTime, ...]
    launches: float
    device_us: float
    call_us: float
    host_us: float

    @property
    def idle_us(self) -> float:
        """The device waits for the host: what a CUDA graph would save."""
        return max(0.0, self.call_us - self.device_us)


class Counters(BaseModel):
    """A kernel's hardware counters, caches flushed before it; None where the GPU has no such one.

    Attributes:
        kernel: its name.
        duration_us: at whatever clock the GPU chose.
        dram_read_bytes, dram_written_bytes: moved between memory and the L2 cache.
        l2_hit_percent: of 32-byte sectors asked of the L2 cache.
        occupancy_percent: resident warps, of the most that a multiprocessor takes.
        registers, shared_bytes: of a thread, of a block.
        blocks_by: limit -> blocks a multiprocessor could hold by it (registers, shared_mem, ...).
        waves: how often the grid fills the GPU.
        eligible_warps: per scheduler and cycle; under 1 some cycles issue nothing.
        stalls: reason -> warps that wait for it, per issued instruction; largest first.
        bank_conflicts, shared_wavefronts: extra passes through shared memory, and all passes.
        load_sectors, store_sectors: 32-byte sectors a global request of a warp touches.
        load_use_percent, store_use_percent: of the bytes of those sectors that were wanted.
        tensor_percent: cycles in which the tensor pipe works.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str
    duration_us: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    l2_hit_percent: float | None = None
    occupancy_percent: float | None = None
    registers: float | None = None
    shared_bytes: float | None = None
    blocks_by: dict[str, float] = {}
    waves: float | None = None
    eligible_warps: float | None = None
    stalls: dict[str, float] = {}
    bank_conflicts: float | None = None
    shared_wavefronts: float | None = None
    load_sectors: float | None = None
    store_sectors: float | None = None
    load_use_percent: float | None = None
    store_use_percent: float | None = None
    tensor_percent: float | None = None


class Advice(BaseModel):
    """One thing that the numbers say.

    Attributes:
        rule: which rule found it.
        says: the finding, with its numbers.
        try_next: what to change; None where nothing has to be.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: str
    says: str
    try_next: str | None = None

    def __str__(self) -> str:
        return self.says if self.try_next is None else f"{self.says}: try {self.try_next}"


class ProfileReport(BaseModel):
    """A profile of one implementation at one workload.

    Attributes:
        op, implementation, workload, direction, device: what was profiled.
        needed_bytes, needed_flops: what the call must move and do at least.
        copy_bytes_per_second: of the device, where it is known.
        timeline: by torch's profiler.
        counters: of each kernel of a call, by Nsight Compute, in order of launch.
        counters_missing: why there are none.
        advice: in words, the most telling first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    implementation: str
    workload: str
    direction: Direction
    device: str
    needed_bytes: int
    needed_flops: int
    copy_bytes_per_second: float | None
    timeline: Timeline
    counters: tuple[Counters, ...] = ()
    counters_missing: str | None = None
    advice: tuple[Advice, ...]
