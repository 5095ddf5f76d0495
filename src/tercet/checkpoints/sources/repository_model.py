"""RepositoryModel: a packed checkpoint that is kept in the repository, not in the package."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tercet.checkpoints.seal import SEAL_NAME, Verification, read_seal
from tercet.errors import CheckpointError

# of a checkout whose package is used from its src folder
_FOLDER = Path(__file__).resolve().parents[4] / "models"


@dataclass(frozen=True, kw_only=True)
class RepositoryModel:
    """A packed checkpoint in the repository's folder models/, under its name.

    Attributes:
        seal_sha256: of its SHA256SUMS, in hex, which has the hash of each other file.
        licence: of the weights.
        about: one-line description of the model.
    """

    seal_sha256: str
    licence: str
    about: str

    # the directory is the model
    entry: ClassVar[str] = ""

    def is_whole(self, directory: Path, *, verify: bool) -> bool:
        """Whether `directory` holds this model; every byte is checked if `verify`."""
        seal = directory / SEAL_NAME
        if not seal.is_file() or _sha256(seal) != self.seal_sha256:
            return False
        if not verify:
            return all((directory / name).is_file() for name in read_seal(directory))
        try:
            Verification(directory).finish()
        except CheckpointError:
            return False
        return True

    def bring(self, name: str, into: Path, report: Callable[[str], None]) -> None:
        """Copies the model from the repository into a directory that is there.

        Args:
            name: of its folder.
            into: is filled.
            report: called with a one-line message first.

        Raises:
            CheckpointError: there is no repository around this package, or what it holds is not
                this model.
        """
        kept = _FOLDER / name
        if not kept.is_dir():
            raise CheckpointError(
                f"{name} is in the folder models/ of Tercet's repository, which an installed "
                f"package does not have: clone the repository and give models/{name}, or install "
                f"the package from the clone (pip install -e .)"
            )
        report(f"copying {name}: {self.about}, {self.licence}")
        for path in sorted(kept.iterdir()):
            shutil.copyfile(path, into / path.name)
        if not self.is_whole(into, verify=True):
            raise CheckpointError(
                f"{kept}: not the files that this version of Tercet knows: check out the folder "
                f"again (git checkout -- models/{name})"
            )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
