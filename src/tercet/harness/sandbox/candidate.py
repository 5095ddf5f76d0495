"""Candidate: a Python file that an author wants judged as an implementation of an op."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tercet.errors import UnsupportedError
from tercet.kernel.contract import Implementation, Requirement

_PREFIX = "tercet_candidate_"


def candidate_from(path: Path) -> Implementation:
    """The file as an implementation. It is not imported here, only where it is judged.

    UnsupportedError for a file that does not exist.
    """
    if not path.is_file():
        raise UnsupportedError(
            f"candidate {str(path)!r}: no such file; give a Python file with a function forward "
            "(and gradient) that takes what the op's own implementations take"
        )
    return Implementation(
        name=path.stem,
        requirement=Requirement(dtypes=()),
        module=str(path.resolve()),
        language="torch",
    )


def import_candidate(module: str) -> str:
    """The importable name of a candidate's module, which may be the path of a file."""
    path = Path(module)
    if path.suffix != ".py":
        return module
    name = _PREFIX + path.stem
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnsupportedError(f"candidate {module!r}: this is no Python file")
    loaded = module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return name
