"""Explained: mutants that change nothing, with the reason, in `mutants.json` of the op's folder."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter


class Explanation(BaseModel):
    """Why some mutants of an implementation cannot be told from it.

    Attributes:
        implementation: of the op.
        reason: a sentence.
        mutants: their keys (`Mutant.key`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    implementation: str
    reason: str
    mutants: tuple[str, ...]


_LIST = TypeAdapter(tuple[Explanation, ...])


def explanations(folder: Path, implementation: str) -> dict[str, str]:
    """Mutant's key -> reason."""
    path = folder / "mutants.json"
    if not path.is_file():
        return {}
    found = _LIST.validate_python(json.loads(path.read_text(encoding="utf-8")))
    return {
        key: each.reason
        for each in found
        if each.implementation == implementation
        for key in each.mutants
    }
