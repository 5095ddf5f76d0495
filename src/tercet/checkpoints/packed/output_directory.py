"""The directory that a run writes: what may lie there, who may write, and how it is replaced.

A run takes hours and replaces what was there: everything that would make it fail at the end, or
destroy what Tercet did not write, is found before any work.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tercet.checkpoints.atomic import is_out_of_space
from tercet.checkpoints.named_path import named_path, partial_directory
from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.layout import MANIFEST_NAME, QUANT_METHOD
from tercet.checkpoints.seal import SEAL_NAME
from tercet.errors import CheckpointError

STATE = "unfinished"
# of a packed checkpoint, and of what export writes
_OWN_FILES = (MANIFEST_NAME, "tercet_origin.json", "tercet_export.json")


@contextmanager
def claim_output(
    out: str | Path,
    *,
    overwrite: bool,
    resume: bool = False,
    sources: Sequence[object] = (),
) -> Generator[Path]:
    """The directory to write, checked, and kept from other runs while the block runs.

    Args:
        out: as the user gave it; a link is followed.
        overwrite: a checkpoint and an unfinished run that lie there may be replaced.
        resume: the run goes on with an unfinished one.
        sources: paths of models that are read; what is no path (the name of a hub) is passed over.

    Raises:
        CheckpointError: something lies there that must not be replaced, nothing can be written
            there, or another run does.
    """
    out = resolve_output(out)
    _demand_apart(out, sources)
    check_writable(out)
    with lock_output(out):
        check_free(out, overwrite=overwrite, resume=resume)
        try:
            yield out
        except CheckpointError as error:
            partial = partial_directory(out)
            if is_out_of_space(error.__cause__) and partial.exists():
                raise CheckpointError(
                    f"{error}; what was finished is kept in {partial}: go on with the same command "
                    f"and --resume"
                ) from error.__cause__
            raise


def resolve_output(out: str | Path) -> Path:
    """The path itself, or where it points: a link cannot be replaced by a directory."""
    named = named_path(out)
    return named.resolve() if named.is_symlink() else named


def check_free(out: Path, *, overwrite: bool, resume: bool) -> None:
    """CheckpointError where writing to `out` would destroy something without leave."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out}: is a file; choose another --out, or remove the file")
    if _holds_anything(out):
        if not overwrite:
            raise CheckpointError(
                f"{out}: already exists; choose another --out, or replace it with --overwrite"
            )
        if not _is_written_by_tercet(out):
            raise CheckpointError(
                f"{out}: no checkpoint that Tercet wrote, and --overwrite replaces no other "
                f"directory; choose another --out, or remove the directory yourself"
            )
    _check_partial(partial_directory(out), overwrite=overwrite, resume=resume)


def _check_partial(partial: Path, *, overwrite: bool, resume: bool) -> None:
    if not partial.exists():
        return
    if _holds_anything(partial) and not (partial / STATE).is_dir():
        raise CheckpointError(
            f"{partial}: lies where the unfinished run is kept, and is none; choose another --out, "
            f"or remove it yourself"
        )
    if not overwrite and not resume:
        raise CheckpointError(
            f"{partial}: an unfinished run lies here; go on with --resume, "
            f"or start anew with --overwrite"
        )


def check_writable(out: Path) -> None:
    """CheckpointError where no directory can be made at `out`; found before hours of work."""
    parent = next(place for place in out.absolute().parents if place.exists())
    if not parent.is_dir():
        raise CheckpointError(f"{out}: {parent} is a file: choose another output directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"{out}: {parent} cannot be written to: choose another output directory, or ask for "
            f"the permission"
        )


def replace_directory(new: Path, old: Path) -> None:
    """Renames `new` to `old`; what lay at `old` stays until `new` is in place."""
    if not old.exists():
        new.rename(old)
        return
    # a name of nobody's: OLD.replaced may be the user's own
    aside = Path(tempfile.mkdtemp(prefix=f".{old.name}.", suffix=".replaced", dir=old.parent))
    kept = aside / old.name
    try:
        old.rename(kept)
        new.rename(old)
    except OSError:
        if kept.exists():
            kept.rename(old)
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def _demand_apart(out: Path, sources: Sequence[object]) -> None:
    """CheckpointError where `out` is one of the models that are read, holds it or lies in it."""
    place = out.resolve()
    for source in sources:
        if not isinstance(source, (str, Path)) or not named_path(source).exists():
            continue
        read = Path(source).resolve()
        how = None
        if place == read:
            how = "is"
        elif place in read.parents:
            how = "contains"
        elif read in place.parents:
            how = "lies inside"
        if how is not None:
            raise CheckpointError(
                f"{out}: the output directory {how} the model that is read ({source}): choose "
                f"another --out"
            )


def _holds_anything(directory: Path) -> bool:
    return directory.exists() and (not directory.is_dir() or any(directory.iterdir()))


def _is_written_by_tercet(directory: Path) -> bool:
    if any((directory / name).is_file() for name in _OWN_FILES):
        return True
    method = _quantization_method(directory)
    # an export for another program names that program's method, and Tercet sealed it
    return method == QUANT_METHOD or (method is not None and (directory / SEAL_NAME).is_file())


def _quantization_method(directory: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        section = json.loads((directory / "config.json").read_bytes())["quantization_config"]
        return str(section["quant_method"])
    return None
