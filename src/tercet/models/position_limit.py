"""The longest sequence that a model has positions for."""

from collections.abc import Mapping
from typing import Any, cast

from tercet.errors import PlanError


def check_positions(config: Any, length: int, model: str, option: str = "--length") -> None:
    """PlanError where sequences are longer than the model's positions.

    Learned positions end there; a rotary model goes on, and computes what it was not trained for.

    Args:
        config: of transformers, or the content of config.json; one that names no limit has none.
        length: tokens of a sequence.
        model: for the message.
        option: that says how long sequences are, for the message.
    """
    name = "max_position_embeddings"
    most: Any
    if isinstance(config, Mapping):
        most = cast("Mapping[str, Any]", config).get(name)
    else:
        most = getattr(cast(object, config), name, None)
    if isinstance(most, int) and 0 < most < length:
        raise PlanError(
            f"{model}: sequences of {length} tokens, but the model has {most} positions: give "
            f"{option} {most} or less"
        )
