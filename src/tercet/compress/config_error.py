"""What is wrong with a config.json that transformers can make no model of."""

from collections.abc import Mapping
from typing import Any

from tercet.errors import CheckpointError, TercetError, UnsupportedError

_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "vocab_size",
)
_MEND = "correct it, or copy config.json again from the place where the model was published"


def config_error(config: Mapping[str, Any], error: Exception) -> TercetError:
    """The error to raise for a config.json: names the key, what it is and what is allowed.

    Args:
        config: the content of config.json.
        error: what transformers raised.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return CheckpointError(
            f"config.json: model_type is {model_type!r}: it must name the kind of model, as in "
            f"'llama': {_MEND}"
        )
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING and config.get("auto_map"):
        return UnsupportedError(
            f"model_type {model_type!r} is not known to transformers, and the model's own code "
            f"(auto_map in config.json, trust_remote_code) is not run: convert the model to an "
            f"architecture of transformers, or install a newer transformers that has this one"
        )
    if model_type not in CONFIG_MAPPING:
        return UnsupportedError(
            f"model_type {model_type!r} is not known to transformers: "
            f"install a newer transformers or convert the model"
        )
    # of a size that is 0 or below 0, transformers says no more than that it divided by it
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and not isinstance(value, list) and not _is_count(value):
            return CheckpointError(
                f"config.json: {name} is {value!r}: it must be a whole number above 0: {_MEND}"
            )
    reason = error.__cause__ or error
    return CheckpointError(
        f"config.json: transformers makes no {model_type!r} model of it: "
        f"{type(reason).__name__}: {str(reason).removesuffix('.')}: {_MEND}"
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
