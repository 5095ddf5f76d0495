"""Profile: times, counters and advice for one implementation at one workload."""

import torch

from tercet.harness.profile.call import Request, choose_implementation, prepare_call
from tercet.harness.profile.ncu import counters
from tercet.harness.profile.report import ProfileReport, Timeline
from tercet.harness.profile.timeline import timeline
from tercet.harness.profile.words import Facts, advise
from tercet.kernel.contract import Cost, Op, Workload
from tercet.kernel.tuned import Direction
from tercet.ops.discover import address_of


def profile(
    op: Op,
    workload: Workload,
    *,
    device: str,
    implementation: str | None = None,
    direction: Direction = "forward",
    with_counters: bool = True,
    copy_bytes_per_second: float | None = None,
    flops_per_second: float | None = None,
) -> ProfileReport:
    """Profiles a call.

    Args:
        op: with `inputs`; of the package, or found by the path of its folder.
        workload: sizes of all axes, the dtype, the op's options.
        device: "cpu" or "cuda".
        implementation: its name; None for the one that selection takes.
        direction: "forward", or "backward" alone.
        with_counters: whether to run Nsight Compute where it is.
        copy_bytes_per_second, flops_per_second: the device's ceilings, measured; without them the
            advice does not say how far the call is from its limit.

    Raises:
        UnsupportedError: where the implementation may not run here, or there is no such direction.
    """
    request = Request(
        op=address_of(op),
        implementation=choose_implementation(op, workload, device, implementation),
        name=workload.name,
        sizes=dict(workload.sizes),
        dtype=str(workload.dtype)[6:],
        options=dict(workload.options),
        direction=direction,
        device=device,
    )
    times, cost = _observed(request)
    found = counters(request) if with_counters else "hardware counters were not asked for"
    kernels = () if isinstance(found, str) else found
    facts = Facts(
        needed_bytes=cost.bytes,
        needed_flops=cost.flops,
        timeline=times,
        counters=kernels,
        on_gpu=device == "cuda",
        copy_bytes_per_second=copy_bytes_per_second,
        flops_per_second=flops_per_second,
    )
    return ProfileReport(
        op=op.name,
        implementation=request.implementation,
        workload=str(workload),
        direction=direction,
        device=device,
        needed_bytes=cost.bytes,
        needed_flops=cost.flops,
        copy_bytes_per_second=copy_bytes_per_second,
        timeline=times,
        counters=kernels,
        counters_missing=found if isinstance(found, str) else None,
        advice=advise(facts),
    )


def _observed(request: Request) -> tuple[Timeline, Cost]:
    """The timeline and the least cost of the call; its tensors are freed for ncu's process."""
    with prepare_call(request) as call:
        found = timeline(call.run, request.device), call.cost
    del call
    if request.device == "cuda":
        torch.cuda.empty_cache()
    return found
