"""distill_by_recipe: makes what a recipe describes, from the uncompressed model and text."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoints.atomic import write_atomic
from tercet.checkpoints.named_path import partial_directory
from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.output_directory import claim_output
from tercet.checkpoints.packed.read import is_packed
from tercet.checkpoints.sources.open import open_source
from tercet.compress.pipeline import Progress, compress
from tercet.compress.training.corpus import find_parts
from tercet.errors import CheckpointError
from tercet.models.position_limit import check_positions
from tercet.recipes.recipe import Pass, Recipe
from tercet.workflows.training.finetune import FineTuned, finetune

# beside the output, while it is made: what each stage gave, and what for
_STAGES = ".stages"
_IDENTITY = "recipe.json"


def distill_by_recipe(
    teacher: str | Path,
    recipe: Recipe,
    out: str | Path,
    *,
    data: Sequence[str | Path],
    calibration: str | Path | None = None,
    device: torch.device | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Callable[[int, int, str], None] = lambda _, __, ___: None,
) -> FineTuned:
    """Compress the teacher by the recipe's plan, train it by its passes, and write the last result.

    A run that fails or is killed leaves the directory `OUT.stages`, from which `resume` goes on, in
    the middle of a stage too.

    Args:
        teacher: the uncompressed model.
        recipe: what is done.
        out: the directory to write.
        data: text for the passes, as `finetune` takes it.
        calibration: text for the plan, as `compress` takes it.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one.
        overwrite: replace a checkpoint at `out`, and an unfinished run.
        resume: continue an unfinished run of the same command.
        progress: called with (done, of how many, what is being done), anew in each stage.

    Raises:
        CheckpointError, PlanError, UnsupportedError: the input is not valid.
    """
    # the last pass claims the output for itself; what it would refuse is found here first
    with claim_output(out, overwrite=overwrite, resume=resume, sources=[teacher]) as claimed:
        out = claimed
    for one in data:
        find_parts(str(one))
    length = max(one.length for one in recipe.passes)
    check_positions(open_source(teacher).config, length, str(teacher), "a recipe with sequences of")
    identity = {
        "teacher": str(teacher),
        "recipe": recipe.model_dump(mode="json"),
        "data": [str(one) for one in data],
        "calibration": None if calibration is None else str(calibration),
    }
    stages = out.with_name(f"{out.name}{_STAGES}")
    with lock_output(stages):
        _begin(stages, identity, overwrite=overwrite, resume=resume)
        try:
            made = stages / "compressed"
            count = 1 + len(recipe.passes)
            if not is_packed(made):
                compress(
                    teacher,
                    recipe.plan,
                    made,
                    calibration=calibration,
                    device=device,
                    resume=partial_directory(made).exists(),
                    progress=Progress(unit=_stage(progress, 1, count)),
                )
            *first, last = recipe.passes
            train = partial(_train, teacher=teacher, data=data, device=device, resume=resume)
            for index, one in enumerate(first, start=1):
                target = stages / f"pass-{index}"
                if not is_packed(target):
                    train(made, target, one, progress=_stage(progress, index + 1, count))
                made = target
            result = train(
                made, out, last, overwrite=overwrite, progress=_stage(progress, count, count)
            )
        except BaseException:
            if [path.name for path in stages.iterdir()] == [_IDENTITY]:
                # nothing was made yet that could be gone on with
                shutil.rmtree(stages)
            raise
        shutil.rmtree(stages)
        return result


def _train(
    checkpoint: Path,
    out: Path,
    one: Pass,
    *,
    data: Sequence[str | Path],
    resume: bool,
    **more: Any,
) -> FineTuned:
    written = [f"teacher:{one.teacher_tokens}"] if one.teacher_tokens else []
    return finetune(
        checkpoint,
        out,
        data=[*data, *written],
        length=one.length,
        settings=one.settings,
        resume=resume and partial_directory(out).exists(),
        **more,
    )


def _stage(
    progress: Callable[[int, int, str], None], stage: int, count: int
) -> Callable[[int, int, str], None]:
    return lambda done, of, what: progress(done, of, f"stage {stage} of {count}, {what}")


def _begin(stages: Path, identity: Mapping[str, object], *, overwrite: bool, resume: bool) -> None:
    """Makes the directory of stages, or finds that it is of the same command."""
    note = stages / _IDENTITY
    content = json.dumps(identity, indent=1).encode()
    if stages.exists() and not (resume or overwrite):
        raise CheckpointError(
            f"{stages}: an unfinished run lies here; go on with --resume, or start anew with "
            f"--overwrite"
        )
    if stages.exists() and resume:
        if not note.is_file() or note.read_bytes() != content:
            raise CheckpointError(
                f"{stages}: is of another command (recipe, teacher, data or calibration): give the "
                f"same, or start anew with --overwrite"
            )
        return
    if stages.exists() and not note.is_file() and any(stages.iterdir()):
        raise CheckpointError(
            f"{stages}: lies where the unfinished run is kept, and is none; choose another --out, "
            f"or remove it yourself"
        )
    shutil.rmtree(stages, ignore_errors=True)
    stages.mkdir(parents=True)
    write_atomic(note, content)
