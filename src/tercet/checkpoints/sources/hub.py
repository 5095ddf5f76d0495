"""A model by its name on the Hugging Face hub, through huggingface_hub and its cache."""

from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from tercet.checkpoints.sources.safetensors_directory import COMPANIONS
from tercet.errors import CheckpointError

_WANTED = ["config.json", "adapter_config.json", "*.safetensors", "*.safetensors.index.json"]
_OTHERWISE = "pass the path of a directory that holds config.json and safetensors files, or a GGUF"


def hub_directory(name: str) -> Path:
    """Where the files of `org/name` lie, downloaded first where the cache lacks them.

    HF_HUB_OFFLINE, HF_HOME and HF_TOKEN mean what they mean to huggingface_hub.

    Errors:
        CheckpointError for a name that the hub lacks or refuses, and for no connection.
    """
    try:
        hub: Any = huggingface_hub
        return Path(hub.snapshot_download(name, allow_patterns=[*_WANTED, *COMPANIONS]))
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} is no hub name: {_OTHERWISE}") from error
    except GatedRepoError as error:
        raise CheckpointError(
            f"the hub asks for a licence to be accepted before it gives {name!r}: accept it on the "
            f"model's page and set HF_TOKEN, or {_OTHERWISE}"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {name!r}, or it is private: check the name, set HF_TOKEN, "
            f"or {_OTHERWISE}"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> CheckpointError:
    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set and the hub's cache does not hold it"
    else:
        why = f"the hub could not be reached ({type(error).__name__}) and its cache lacks it"
    return CheckpointError(f"no directory {name!r} here, and as a hub name: {why}: {_OTHERWISE}")
