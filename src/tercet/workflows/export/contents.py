"""What every target makes of a packed checkpoint; nothing is written."""

from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.errors import UnsupportedError
from tercet.export.target import Target, find_target, install_command, target_names


class Acceptance(BaseModel):
    """What one target makes of a checkpoint.

    Attributes:
        target: its name.
        client: what runs it.
        installed: the client's version, or None.
        install: the command that installs it.
        kinds: the target's formats, with how many modules each holds.
        bits_per_weight: of the packed modules there; None where one is refused.
        refusals: reasons, with how many modules each concerns.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    client: str
    installed: str | None
    install: str
    kinds: dict[str, int]
    bits_per_weight: float | None
    refusals: dict[str, int]


def acceptances(directory: str | Path) -> list[Acceptance]:
    """What every target makes of a packed checkpoint; nothing is written."""
    checkpoint = open_packed(directory)
    return [_acceptance(checkpoint, find_target(name)) for name in target_names()]


def _acceptance(checkpoint: PackedCheckpoint, target: Target) -> Acceptance:
    try:
        holdings = target.holdings(checkpoint)
        refusals = Counter(h.reason for h in holdings if h.reason is not None)
    except UnsupportedError as error:
        # an architecture that the target lacks concerns no module in particular
        holdings, refusals = (), Counter({str(error): len(checkpoint.modules)})
    weights = {name: prod(entry.shape) for name, entry in checkpoint.modules.items()}
    bits = sum((h.bits_per_weight or 0.0) * weights[h.module] for h in holdings)
    return Acceptance(
        target=target.name,
        client=target.client,
        installed=installed_version(target),
        install=install_command(target),
        kinds=dict(Counter(h.kind for h in holdings if h.kind is not None)),
        bits_per_weight=None if refusals else bits / max(sum(weights.values()), 1),
        refusals=dict(refusals),
    )


def installed_version(target: Target) -> str | None:
    """Of a target's client; None where it is not installed."""
    try:
        return version(target.client)
    except PackageNotFoundError:
        return None
