"""Verification of an allocation: the plan is carried out, and what was predicted is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.sources.open import open_source
from tercet.compress import text
from tercet.compress.allocate.rows import Windows, read_rows
from tercet.compress.allocate.sensitivity_file import Identity
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Plan
from tercet.errors import PlanError
from tercet.evaluate.compare import Quality, compare
from tercet.models.device import resolve_device
from tercet.workflows.evaluation import student
from tercet.workflows.teacher import teacher as open_teacher


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a plan gave.

    Attributes:
        windows: quality on the windows that sensitivity was measured on.
        held_out: on those of the same text that neither calibration nor selection saw.
        teacher_perplexity: the uncompressed model's on the held-out windows.
        checkpoint_bytes: the checkpoint's weight files.
    """

    windows: Quality
    held_out: Quality
    teacher_perplexity: float
    checkpoint_bytes: int


def verify_allocation(
    identity: Identity,
    plan: Plan,
    *,
    model: str | Path | None = None,
    calibration: str | Path | Tensor | None = None,
    checkpoint: str | Path | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int, int, str], None] = lambda _, __, ___: None,
) -> Verified:
    """Compress by the plan and measure divergence on the windows and on held-out ones.

    Args:
        identity: of the sensitivity file that the plan comes from.
        plan: the plan.
        model: the model, where it is not at the place that the file names.
        calibration: the text that sensitivity was measured with.
        checkpoint: keep the checkpoint there; None for a temporary folder.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one.
        progress: is told (units done, units in all, name of the unit).

    Raises:
        PlanError: another model or another text than the file was measured with.
    """
    target = resolve_device(device)
    source = open_source(model if model is not None else identity.source.reference)
    if source.sha256() != identity.source.sha256:
        raise PlanError(
            f"{source.reference}: its weights are not those that sensitivity was measured of: "
            f"name the right model with --model, or measure this one"
        )
    with TemporaryDirectory() as folder:
        source.save_companions(folder)
        windows = Windows(count=identity.windows.sequences, length=identity.windows.length)
        rows = read_rows(calibration, Path(folder), plan.calibration, windows, source.reference)
        if text.describe(rows.held_out) != identity.held_out:
            raise PlanError(
                "the calibration text is not the one that sensitivity was measured with: give the "
                "same --calibration"
            )
        out = Path(checkpoint) if checkpoint is not None else Path(folder) / "checkpoint"
        compress(
            source,
            plan,
            out,
            calibration=rows.calibration,
            device=target,
            progress=Progress(unit=progress),
        )
        s = student(str(out), target)
        with open_teacher(source, target) as reference:
            found = [compare(ids, {"s": s}, reference) for ids in (rows.windows, rows.held_out)]
        return Verified(
            windows=found[0]["s"],
            held_out=found[1]["s"],
            teacher_perplexity=found[1]["teacher"].perplexity,
            checkpoint_bytes=open_packed(out).size_bytes,
        )
