"""Token ids of a safetensors file with the tensor input_ids."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch
from torch import Tensor

from tercet.errors import PlanError


def read_token_ids(path: Path) -> Tensor:
    """The file's input_ids as int64, in their shape.

    Raises:
        PlanError: there is no such file or tensor, its numbers are no integers, or some are
            padding.
    """
    try:
        tensors = safetensors_torch.load_file(path)
        ids = tensors["input_ids"]
    except (OSError, SafetensorError, KeyError) as error:
        raise PlanError(f"{path}: no safetensors file with input_ids ({error})") from error
    mask = tensors.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise PlanError(
            f"{path}: attention_mask leaves out {int((mask == 0).sum())} tokens, which would count "
            f"like any others: give sequences without padding"
        )
    return check_integers(ids, f"{path}: input_ids")


def check_integers(ids: Tensor, what: str) -> Tensor:
    """As int64; PlanError where they are no integers."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise PlanError(f"{what} are {ids.dtype}: give token ids, which are integers")
    return ids.long()


def check_ids(ids: Tensor, vocabulary: int, what: str) -> None:
    """PlanError unless ids, of any shape but not empty, are from 0 to below `vocabulary`."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        raise PlanError(
            f"{what} ids run from {low} to {high}, the model's vocabulary from 0 to "
            f"{vocabulary - 1}: tokenize the text with this model's tokenizer"
        )
