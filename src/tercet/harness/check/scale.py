"""Scale: runs the check at the shapes of a published model, and beyond 2^31 elements."""

import os

import torch

from tercet.child_process import ChildError
from tercet.errors import UnsupportedError
from tercet.harness.author_errors import blames_author
from tercet.harness.check.at_scale import check_workload, check_workload_apart
from tercet.harness.check.run import CheckReport, cannot_run
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_finding
from tercet.harness.sandbox.isolate import SECONDS
from tercet.harness.sandbox.session import Apart, Session
from tercet.harness.seed import draw_seed
from tercet.harness.workloads.shapes import beyond_int32, fit_memory, workloads_of
from tercet.kernel.contract import Implementation, Op, Workload

# inputs and results of a candidate: here, in the memory that it computes in, and as bytes before
_COPIES = 3


@blames_author
def check_scale(
    op: Op,
    model: str,
    *,
    device: str,
    seed: int | None = None,
    implementation: str | None = None,
    candidate: Implementation | None = None,
    location: str | None = None,
    seconds: float = SECONDS,
    tensor_parallel: int = 1,
    tokens: int | None = None,
) -> CheckReport:
    """Every call of the op in a model, compared whole with float64, and one that is huge.

    A shape that does not fit this machine's memory is made smaller; its name says so.

    Args:
        op, model: which calls: models/catalog names the model.
        device, seed: where, and of the inputs (None draws one).
        implementation: only this one; None is every one that can run there.
        candidate: judged instead, in a process of its own, which needs twice the memory.
        location: the path of the op's folder, where it lies outside the package.
        seconds: the limit of one call of a candidate.
        tensor_parallel, tokens: as `workloads_of`.

    Raises:
        UnsupportedError: where the op has no calls in the model.
    """
    seed = draw_seed() if seed is None else seed
    wanted = workloads_of(op, model, tensor_parallel, tokens)
    if not wanted:
        raise UnsupportedError(
            f"op {op.name!r} has no calls in {model!r}: see tercet kernel shapes"
        )
    workloads = list(wanted)
    if device == "cuda" and op.independent is not None:
        workloads.append(beyond_int32(op, wanted[0]))
    free = _free_bytes(device) // (_COPIES if candidate is not None else 1)
    fitted = [fit_memory(op, workload, free) for workload in workloads]
    if candidate is not None:
        return _check_candidate(op, candidate, fitted, device, seed, location, seconds)
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


def _check_candidate(
    op: Op,
    candidate: Implementation,
    fitted: list[tuple[Workload, str | None]],
    device: str,
    seed: int,
    location: str | None,
    seconds: float,
) -> CheckReport:
    findings = list[Finding]()
    arena = None if device == "cpu" else _free_bytes(device) // 2
    place = Apart(
        location or op.name, candidate.name, candidate.module, device, seconds, None,
        arena_bytes=arena,
    )  # fmt: skip
    try:
        for workload, note in fitted:
            named = _noted(workload, note)
            try:
                findings += check_workload_apart(
                    op,
                    Session(place),
                    named,
                    implementation=candidate.name,
                    device=device,
                    seed=seed,
                )
            except ChildError as error:
                case = f"{named.name}: {named}"
                findings.append(fault_finding(error, candidate.name, case))
    finally:
        place.close()
    return CheckReport(
        op=op.name,
        device=device,
        seed=seed,
        findings=tuple(findings),
        skipped={},
        not_guaranteed=place.missing,
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
