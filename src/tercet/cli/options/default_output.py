"""Where a command writes that was given a model and no --out."""

from pathlib import Path

from tercet.checkpoints.named_path import named_path


def default_output(model: str, ending: str) -> Path:
    """MODEL and the ending, in the current directory; beside the model where that is within it.

    Args:
        model: as the user gave it: a path or the name of a model.
        ending: of the name: "-int4".
    """
    path = named_path(model)
    real = path.resolve()
    name = f"{path.stem}{ending}"
    within = real.is_dir() and real in (Path.cwd(), *Path.cwd().parents)
    return real.parent / name if within else Path(name)
