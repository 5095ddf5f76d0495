"""Words: turns the numbers of a profile into sentences and advice. One rule a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tercet.harness.profile.report import Advice, Counters, Timeline

# a call at 90 % of its limit has nothing left that a rewrite would pay for
NEAR_THE_LIMIT = 0.9
_EXTRA_TRAFFIC = 1.15
_LOW_L2_PERCENT = 50.0
_IDLE_SHARE = 0.15
_LOW_OCCUPANCY_PERCENT = 40.0
_STALL_SHARE = 0.3
_CONFLICT_SHARE = 0.1
_WASTED_USE_PERCENT = 75.0
_LOW_TENSOR_PERCENT = 60.0
_SHORT_KERNEL_US = 5.0

_STALLS = {
    "long_scoreboard": (
        "wait for global memory",
        "more bytes in flight: num_stages or prefetching, wider loads, more warps",
    ),
    "short_scoreboard": (
        "wait for shared memory",
        "fewer passes through shared memory: reduce within a warp first, keep values in registers",
    ),
    "barrier": (
        "wait for other warps at a barrier",
        "fewer warps a block or several rows a program, so that a reduction joins fewer warps",
    ),
    "lg_throttle": (
        "queue for the global memory unit",
        "fewer, wider loads and stores: 16 bytes a thread",
    ),
    "mio_throttle": (
        "queue for the shared memory unit",
        "fewer shared memory instructions: wider ones, or shuffles in their place",
    ),
    "math_pipe_throttle": (
        "queue for an arithmetic unit",
        "fewer instructions an element, or a unit that idles",
    ),
    "gmma": (
        "wait for the tensor cores",
        "keeping one more product in flight, larger tiles, loads by TMA in a warp of their own",
    ),
    "drain": ("wait for their last stores", "wider stores, or a persistent grid"),
    "wait": ("wait out fixed latencies", "more independent work a thread"),
    "no_instruction": ("wait for instructions", "a shorter loop body: less unrolling"),
    "imc_miss": ("wait for constants", "fewer distinct constant arguments"),
    "membar": ("wait at a memory fence", "fewer fences and atomics"),
    "sleeping": ("sleep", "another way to wait than sleeping"),
}
_LIMITERS = {
    "registers": "registers ({registers:.0f} a thread): smaller blocks, or more warps for a block",
    "shared_mem": "shared memory ({shared_bytes:.0f} bytes a block): fewer stages, smaller tiles",
    "warps": "the size of a block: fewer warps a block",
    "blocks": "the number of blocks: more warps a block",
    "barriers": "barriers: fewer of them a block",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the rules read.

    Attributes:
        needed_bytes, needed_flops: the least that one call moves and does.
        timeline, counters: what was measured of one call.
        on_gpu: whether it ran on one.
        copy_bytes_per_second, flops_per_second: the device's ceilings; None where not known.
    """

    needed_bytes: int
    needed_flops: int
    timeline: Timeline
    counters: tuple[Counters, ...] = ()
    on_gpu: bool = True
    copy_bytes_per_second: float | None = None
    flops_per_second: float | None = None

    @property
    def memory_us(self) -> float | None:
        """The time to move the needed bytes at the copy bandwidth."""
        if not self.copy_bytes_per_second:
            return None
        return self.needed_bytes / self.copy_bytes_per_second * 1e6

    @property
    def compute_us(self) -> float:
        """The time to do the needed operations at the matrix rate; 0 where that is not known."""
        return self.needed_flops / self.flops_per_second * 1e6 if self.flops_per_second else 0.0

    @property
    def binds(self) -> Literal["memory", "compute"]:
        """Which of the two is longer."""
        return "compute" if self.compute_us > (self.memory_us or 0.0) else "memory"

    @property
    def fraction(self) -> float | None:
        """Which part of its limit the call reaches; over 1 where the cache held its inputs."""
        if self.memory_us is None or not self.timeline.device_us:
            return None
        return max(self.memory_us, self.compute_us) / self.timeline.device_us

    @property
    def near_the_limit(self) -> bool:
        """Whether nothing is left to gain on the device."""
        return self.fraction is not None and self.fraction >= NEAR_THE_LIMIT

    @property
    def moved_bytes(self) -> float | None:
        """Bytes that went through memory; None where they were not counted."""
        total = 0.0
        for one in self.counters:
            if one.dram_read_bytes is None or one.dram_written_bytes is None:
                return None
            total += one.dram_read_bytes + one.dram_written_bytes
        return total if self.counters else None

    @property
    def longest(self) -> Counters | None:
        """The kernel that takes most of the time, where counters were read."""
        return max(self.counters, key=lambda one: one.duration_us or 0.0, default=None)


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Every rule's word on the facts, in the order of RULES."""
    return tuple(advice for rule in RULES if (advice := rule(facts)) is not None)


def limit(facts: Facts) -> Advice | None:
    """How far the call is from what the device can do, and which side binds."""
    fraction, time_us = facts.fraction, facts.timeline.device_us
    if fraction is None:
        return None
    if facts.binds == "compute":
        reached = f"compute-bound at {fraction:.0%} of the matrix rate"
        needs = f"its {facts.needed_flops:.3g} operations need {facts.compute_us:.1f} us"
    else:
        reached = f"memory-bound at {fraction:.0%} of copy bandwidth"
        needs = f"the {facts.needed_bytes / 1e6:.1f} MB it needs take {facts.memory_us:.1f} us"
    says = f"{reached}: {needs}, the call takes {time_us:.1f} us"
    if fraction > 1:
        says += "; the cache held its inputs"
    return Advice(rule="limit", says=says)


def traffic(facts: Facts) -> Advice | None:
    """More bytes go through memory than the call needs."""
    moved = facts.moved_bytes
    if moved is None or moved < _EXTRA_TRAFFIC * facts.needed_bytes:
        return None
    several = len(facts.counters) > 1
    return Advice(
        rule="traffic",
        says=f"{moved / facts.needed_bytes:.1f}x the bytes it needs are moved "
        f"({moved / 1e6:.1f} MB, {facts.needed_bytes / 1e6:.1f} MB needed)",
        try_next="fusing its kernels, so that nothing between them goes through memory"
        if several
        else "reading each element once: keep the row in registers or shared memory between passes",
    )


def cache(facts: Facts) -> Advice | None:
    """Extra traffic that the L2 cache could have held."""
    one = facts.longest
    if traffic(facts) is None or one is None or one.l2_hit_percent is None:
        return None
    if one.l2_hit_percent >= _LOW_L2_PERCENT:
        return None
    return Advice(
        rule="cache",
        says=f"L2 hit rate {one.l2_hit_percent:.0f} %: what is read again comes from memory",
        try_next="an order of programs in which neighbours share what they read (grouped tiles)",
    )


def idle(facts: Facts) -> Advice | None:
    """The device waits for the host between kernels."""
    times = facts.timeline
    if not facts.on_gpu or times.idle_us < _IDLE_SHARE * times.call_us:
        return None
    return Advice(
        rule="idle",
        says=f"the GPU is idle {times.idle_us:.1f} us of the {times.call_us:.1f} us between eager "
        f"calls, {times.launches:.0f} launches each",
        try_next="a CUDA graph, or fewer launches"
        if times.launches > 1
        else "a CUDA graph around the step that calls it",
    )


def launches(facts: Facts) -> Advice | None:
    """Short kernels beside the main one."""
    times = facts.timeline
    short = [one for one in times.kernels[1:] if one.time_us < _SHORT_KERNEL_US * one.launches]
    spent = sum(one.time_us for one in short)
    if not facts.on_gpu or not short or spent < 0.05 * times.device_us:
        return None
    names = ", ".join(one.name for one in short[:3])
    return Advice(
        rule="launches",
        says=f"{sum(one.launches for one in short):.0f} short launches take {spent:.1f} us of "
        f"{times.device_us:.1f} us: {names}",
        try_next="doing their work in the main kernel, or before it",
    )


def coalescing(facts: Facts) -> Advice | None:
    """Sectors of memory of which a part is thrown away."""
    one = facts.longest
    if one is None:
        return None
    for kind, use, sectors in (
        ("loads", one.load_use_percent, one.load_sectors),
        ("stores", one.store_use_percent, one.store_sectors),
    ):
        if use is not None and 0 < use < _WASTED_USE_PERCENT:
            touched = f" ({sectors:.1f} sectors a request)" if sectors is not None else ""
            return Advice(
                rule="coalescing",
                says=f"global {kind} use {use:.0f} % of the bytes of each 32-byte sector{touched}",
                try_next="letting neighbouring threads take neighbouring elements of a row",
            )
    return None


def conflicts(facts: Facts) -> Advice | None:
    """Extra passes through shared memory."""
    one = facts.longest
    if one is None or not one.shared_wavefronts or one.bank_conflicts is None:
        return None
    share = one.bank_conflicts / one.shared_wavefronts
    if share < _CONFLICT_SHARE:
        return None
    return Advice(
        rule="conflicts",
        says=f"bank conflicts are {share:.0%} of the passes through shared memory",
        try_next="a padded or swizzled layout there",
    )


def occupancy(facts: Facts) -> Advice | None:
    """Few resident warps, and what keeps more away."""
    one = facts.longest
    if one is None or one.occupancy_percent is None or facts.near_the_limit:
        return None
    if one.occupancy_percent >= _LOW_OCCUPANCY_PERCENT:
        return None
    says = f"{one.occupancy_percent:.0f} % of the resident warps that a multiprocessor takes"
    if one.waves is not None and one.waves < 1:
        return Advice(
            rule="occupancy",
            says=f"{says}: the grid fills {one.waves:.0%} of the GPU",
            try_next="smaller blocks or splitting the reduction, so that there are more programs",
        )
    if not one.blocks_by:
        return None
    limiter = min(one.blocks_by, key=lambda name: one.blocks_by[name])
    cause = _LIMITERS[limiter].format(
        registers=one.registers or 0, shared_bytes=one.shared_bytes or 0
    )
    what, _, change = cause.partition(": ")
    return Advice(rule="occupancy", says=f"{says}: limited by {what}", try_next=change)


def stalls(facts: Facts) -> Advice | None:
    """What warps wait for most."""
    one = facts.longest
    if one is None or facts.near_the_limit:
        return None
    waits = {name: ratio for name, ratio in one.stalls.items() if name != "not_selected"}
    total = sum(waits.values())
    if not total:
        return None
    name = max(waits, key=lambda reason: waits[reason])
    share = waits[name] / total
    if share < _STALL_SHARE or name not in _STALLS:
        return None
    what, change = _STALLS[name]
    eligible = (
        f" ({one.eligible_warps:.1f} warps can issue in a cycle)"
        if one.eligible_warps is not None
        else ""
    )
    return Advice(
        rule="stalls",
        says=f"warps {what} in {share:.0%} of their stalls, {name}{eligible}",
        try_next=change,
    )


def tensor(facts: Facts) -> Advice | None:
    """Tensor cores that idle in a call that they bind."""
    one = facts.longest
    if facts.binds != "compute" or one is None or one.tensor_percent is None:
        return None
    if one.tensor_percent >= _LOW_TENSOR_PERCENT:
        return None
    change = (
        "`tl.dot`, on operands of a type that the tensor cores take"
        if one.tensor_percent < 1
        else "larger tiles, more stages, fewer conversions between products"
    )
    return Advice(
        rule="tensor",
        says=f"the tensor cores work in {one.tensor_percent:.0f} % of the cycles",
        try_next=change,
    )


RULES: tuple[Callable[[Facts], Advice | None], ...] = (
    *(limit, traffic, cache, idle, launches),
    *(coalescing, conflicts, occupancy, stalls, tensor),
)
