"""Scale: the check at the shapes of a published model, and beyond 2^31 elements."""

import os

import torch

from tercet.errors import UnsupportedError
from tercet.harness.check import CheckReport, cannot_run
from tercet.harness.finding import Finding
from tercet.harness.shapes import beyond_int32, fit_memory, workloads_of
from tercet.harness.workload import check_workload
from tercet.kernel.contract import Op, Workload


def check_scale(
    op: Op,
    model: str,
    *,
    device: str,
    seed: int | None = None,
    implementation: str | None = None,
    tensor_parallel: int = 1,
    tokens: int | None = None,
) -> CheckReport:
    """Every call of the op in a model, compared whole with float64, and one that is huge.

    A shape that does not fit this machine's memory is made smaller; its name says so.

    Args:
        op, model: which calls: models/catalog names the model.
        device, seed: where, and of the inputs (None draws one).
        implementation: only this one; None is every one that can run there.
        tensor_parallel, tokens: as `workloads_of`.

    Raises:
        UnsupportedError: where the op has no calls in the model.
    """
    seed = int.from_bytes(os.urandom(4), "little") >> 1 if seed is None else seed
    wanted = workloads_of(op, model, tensor_parallel, tokens)
    if not wanted:
        raise UnsupportedError(
            f"op {op.name!r} has no calls in {model!r}: see tercet kernel shapes"
        )
    workloads = list(wanted)
    if device == "cuda" and op.independent is not None:
        workloads.append(beyond_int32(op, wanted[0]))
    fitted = [fit_memory(op, workload, _free_bytes(device)) for workload in workloads]
    findings, skipped = list[Finding](), dict[str, str]()
    for one in op.implementations:
        if implementation not in (None, one.name):
            continue
        reason = cannot_run(one, device, isolated=False)
        if reason is not None:
            skipped[one.name] = reason
            continue
        kernels = one.load()
        for workload, note in fitted:
            call = op.context(workload, device)
            if one.requirement.unfit(call.sizes, call.options) is not None:
                continue
            named = _noted(workload, note)
            findings += check_workload(
                op.held_to(one),
                kernels,
                named,
                implementation=one.name,
                device=device,
                seed=seed,
            )
            if device == "cuda":
                torch.cuda.empty_cache()
    return CheckReport(
        op=op.name, device=device, seed=seed, findings=tuple(findings), skipped=skipped
    )


def _noted(workload: Workload, note: str | None) -> Workload:
    if note is None:
        return workload
    return Workload(
        name=f"{workload.name} ({note})",
        sizes=workload.sizes,
        dtype=workload.dtype,
        options=workload.options,
    )


def _free_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
