"""transformers as the client that runs an export: in float32, so that nothing is rounded twice.

A target whose layers know no float32 loads its models itself.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors_torch
from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.packed.origin import copy_companions
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.models.input_transform import hadamard_transform


def load(directory: Path) -> Any:
    """The model of a directory with its head, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.inference_mode()
def logits(directory: Path, tokens: list[int], loader: Callable[[Path], Any] = load) -> Tensor:
    """Scores float32 [T, V] after each token."""
    model = loader(directory)
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.inference_mode()
def greedy(
    directory: Path, tokens: list[int], count: int, loader: Callable[[Path], Any] = load
) -> list[int]:
    """The next `count` tokens, always the most likely one, past any end of text."""
    model, ids, cache = loader(directory), torch.tensor([tokens]), None
    found: list[int] = []
    for _ in range(count):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
        found.append(int(ids))
    return found


def effective_weight(checkpoint: PackedCheckpoint, module: str) -> Tensor:
    """float32 [N, K] that does to the plain input what the module does to its transformed one.

    Only the quantization of activations, which is no product, is left out.
    """
    entry, weight = checkpoint.modules[module], checkpoint.read_packed(module).dequantize()
    if entry.hadamard is not None:
        # (x s) H W^T = x (s (W H))^T, because H is symmetric
        weight = hadamard_transform(weight, entry.hadamard)
    return weight * checkpoint.input_scale(module) if entry.input_scale else weight


def write_twin(checkpoint: PackedCheckpoint, out: Path, dtype: str = "float32") -> None:
    """The same model as a plain Hugging Face directory, every weight in float32.

    Args:
        checkpoint: the model.
        out: the directory.
        dtype: the one that config.json names, for a client that loads the weights in another.
    """
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    tensors = {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
    for module in checkpoint.modules:
        tensors[f"{module}.weight"] = effective_weight(checkpoint, module).contiguous()
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    with atomic_directory(out) as target:
        safetensors_torch.save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
        text = json.dumps({**config, "dtype": dtype}, indent=1, sort_keys=True)
        (target / "config.json").write_text(text)
        copy_companions(checkpoint.directory, target)
