"""Rules of advice: each with numbers that call for it, and with numbers that do not."""

import pytest

from tercet.harness.profile import Counters, KernelTime, Timeline, words
from tercet.harness.profile.words import Facts, advise

MB = 10**6
GOOD = Counters(
    kernel="_forward",
    duration_us=100.0,
    dram_read_bytes=210 * MB,
    dram_written_bytes=210 * MB,
    l2_hit_percent=12.0,
    occupancy_percent=80.0,
    registers=43,
    shared_bytes=1024,
    blocks_by={"registers": 4, "warps": 8, "shared_mem": 20},
    waves=20.0,
    eligible_warps=0.4,
    stalls={"long_scoreboard": 6.0, "wait": 2.0, "barrier": 2.0, "not_selected": 9.0},
    bank_conflicts=1.0,
    shared_wavefronts=100.0,
    load_sectors=16.0,
    store_sectors=16.0,
    load_use_percent=100.0,
    store_use_percent=100.0,
    tensor_percent=0.0,
)


def _timeline(**changed: object) -> Timeline:
    kernels = (KernelTime(name="_forward", launches=1, time_us=100.0),)
    line = Timeline(kernels=kernels, launches=1, device_us=100.0, call_us=101.0, host_us=20.0)
    return line.model_copy(update=changed)


def _facts(*counters: Counters, timeline: Timeline | None = None, **changed: object) -> Facts:
    given: dict[str, object] = {
        "needed_bytes": 400 * MB,
        "needed_flops": 10**9,
        "timeline": timeline or _timeline(),
        "counters": counters,
        "copy_bytes_per_second": 4e12,
        "flops_per_second": 600e12,
        **changed,
    }
    return Facts(**given)  # type: ignore[arg-type]


def _changed(**changed: object) -> Counters:
    return GOOD.model_copy(update=changed)


def test_a_call_at_its_limit_needs_no_advice() -> None:
    (advice,) = advise(_facts(GOOD))
    assert advice.says == (
        "memory-bound at 100% of copy bandwidth: the 400.0 MB it needs take 100.0 us, "
        "the call takes 100.0 us"
    )
    assert advice.try_next is None


def test_a_slow_call_is_put_into_words() -> None:
    slow = _changed(dram_read_bytes=640 * MB, dram_written_bytes=200 * MB, occupancy_percent=25.0)
    facts = _facts(slow, timeline=_timeline(device_us=164.0, call_us=165.0))
    said = [str(advice) for advice in advise(facts)]
    assert [advice.rule for advice in advise(facts)] == [
        *("limit", "traffic", "cache", "occupancy", "stalls"),
    ]
    assert said[0].startswith("memory-bound at 61% of copy bandwidth")
    assert said[1].startswith("2.1x the bytes it needs are moved (840.0 MB, 400.0 MB needed): try")
    assert said[2].startswith("L2 hit rate 12 %")
    assert "25 % of the resident warps" in said[3]
    assert "limited by registers (43 a thread): try smaller blocks" in said[3]
    assert said[4].startswith("warps wait for global memory in 60% of their stalls")


def test_compute_bound_is_measured_against_the_matrix_rate() -> None:
    facts = _facts(needed_flops=108 * 10**9, timeline=_timeline(device_us=300.0))
    advice = words.limit(facts)
    assert advice is not None
    assert advice.says.startswith("compute-bound at 60% of the matrix rate")
    assert words.limit(_facts(copy_bytes_per_second=None)) is None


def test_over_the_limit_names_the_cache() -> None:
    advice = words.limit(_facts(timeline=_timeline(device_us=50.0)))
    assert advice is not None
    assert advice.says.endswith("the cache held its inputs")


def test_traffic_of_several_kernels_is_fused_away() -> None:
    one, two = words.traffic(_facts(GOOD)), words.traffic(_facts(GOOD, GOOD))
    assert one is None
    assert two is not None
    assert two.says.startswith("2.1x")
    assert "fusing" in (two.try_next or "")
    assert words.traffic(_facts(GOOD, _changed(dram_read_bytes=None))) is None


@pytest.mark.parametrize(("call_us", "found"), [(101.0, False), (117.0, False), (150.0, True)])
def test_idle_needs_a_share_of_the_call(call_us: float, found: bool) -> None:
    advice = words.idle(_facts(timeline=_timeline(call_us=call_us)))
    assert (advice is not None) == found
    if advice is not None:
        assert "idle 50.0 us of the 150.0 us" in advice.says
        assert "CUDA graph" in (advice.try_next or "")


def test_a_cpu_is_never_idle() -> None:
    assert words.idle(_facts(timeline=_timeline(call_us=500.0), on_gpu=False)) is None


def test_short_launches_are_named() -> None:
    kernels = (
        KernelTime(name="_gradient", launches=1, time_us=90.0),
        KernelTime(name="reduce", launches=2, time_us=8.0),
    )
    advice = words.launches(_facts(timeline=_timeline(kernels=kernels, launches=3)))
    assert advice is not None
    assert advice.says == "2 short launches take 8.0 us of 100.0 us: reduce"
    long = (kernels[0], KernelTime(name="reduce", launches=1, time_us=8.0))
    assert words.launches(_facts(timeline=_timeline(kernels=long))) is None


def test_half_used_sectors_are_found() -> None:
    advice = words.coalescing(_facts(_changed(store_use_percent=25.0, store_sectors=32.0)))
    assert advice is not None
    assert (
        advice.says
        == "global stores use 25 % of the bytes of each 32-byte sector (32.0 sectors a request)"
    )
    assert words.coalescing(_facts(_changed(store_use_percent=0.0))) is None
    assert words.coalescing(_facts(GOOD)) is None


def test_bank_conflicts_are_a_share_of_the_passes() -> None:
    advice = words.conflicts(_facts(_changed(bank_conflicts=75.0)))
    assert advice is not None
    assert advice.says.startswith("bank conflicts are 75%")
    assert words.conflicts(_facts(_changed(bank_conflicts=9.0))) is None
    assert words.conflicts(_facts(_changed(shared_wavefronts=0.0))) is None


def test_a_small_grid_is_named_before_registers() -> None:
    slow = _timeline(device_us=300.0)
    advice = words.occupancy(_facts(_changed(occupancy_percent=10.0, waves=0.24), timeline=slow))
    assert advice is not None
    assert advice.says.endswith("the grid fills 24% of the GPU")
    assert words.occupancy(_facts(_changed(occupancy_percent=41.0), timeline=slow)) is None


@pytest.mark.parametrize("limiter", ["registers", "shared_mem", "warps", "blocks", "barriers"])
def test_every_limiter_has_words(limiter: str) -> None:
    one = _changed(occupancy_percent=10.0, blocks_by={"other": 3.0, limiter: 2.0})
    advice = words.occupancy(_facts(one, timeline=_timeline(device_us=300.0)))
    assert advice is not None
    assert "limited by" in advice.says
    assert advice.try_next


def test_stalls_without_a_leader_say_nothing() -> None:
    slow = _timeline(device_us=300.0)
    even = {"long_scoreboard": 1.0, "wait": 1.0, "barrier": 1.0, "drain": 1.0}
    assert words.stalls(_facts(_changed(stalls=even), timeline=slow)) is None
    barrier = words.stalls(_facts(_changed(stalls={**even, "barrier": 3.0}), timeline=slow))
    assert barrier is not None
    assert barrier.says == (
        "warps wait for other warps at a barrier in 50% of their stalls, barrier "
        "(0.4 warps can issue in a cycle)"
    )


def test_idle_tensor_cores_of_a_product() -> None:
    product = {"needed_flops": 108 * 10**9, "timeline": _timeline(device_us=300.0)}
    none = words.tensor(_facts(_changed(tensor_percent=0.0), **product))
    some = words.tensor(_facts(_changed(tensor_percent=40.0), **product))
    assert none is not None
    assert "tl.dot" in (none.try_next or "")
    assert some is not None
    assert "larger tiles" in (some.try_next or "")
    assert words.tensor(_facts(_changed(tensor_percent=70.0), **product)) is None
    assert words.tensor(_facts(GOOD)) is None
