"""The model that packed checkpoints were compressed from, found again and recognized."""

from collections.abc import Sequence

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.errors import CheckpointError

_NAME_IT = "name the model to compare with (--teacher)"


def compressed_from(checkpoints: Sequence[PackedCheckpoint]) -> ModelSource | None:
    """The source that the checkpoints' manifests name; None where the first has no manifest.

    Raises:
        CheckpointError: the source has other weights than when it was compressed, or the
            checkpoints were made from several.
    """
    named = [each.manifest.source if each.manifest else None for each in checkpoints]
    first = named[0]
    if first is None:
        return None
    for checkpoint, other in zip(checkpoints, named, strict=True):
        if other is None or other.sha256 != first.sha256:
            made_from = "a model that it does not name" if other is None else other.reference
            raise CheckpointError(
                f"{checkpoint.directory} was made from {made_from}, {checkpoints[0].directory} "
                f"from {first.reference}, whose weights are others: {_NAME_IT}"
            )
    source = open_source(first.reference)
    if source.sha256() != first.sha256:
        raise CheckpointError(
            f"{first.reference}: its weights are not those that {checkpoints[0].directory} was "
            f"made from (sha256 {source.sha256()}, then {first.sha256}): restore them, or "
            f"{_NAME_IT}"
        )
    return source
