"""Flops: operations of a training step, for its model FLOPs utilization (MFU).

Of each matrix, 2 operations a weight and token forward and 4 backward; of attention, 4 T H forward
a layer and token (half of it masked), twice that backward (PaLM, arXiv:2204.02311, appendix B).
What is computed again for checkpointed activations does not count; a teacher's forward pass does.
"""

from typing import Any

from torch import nn

# dense bf16 matrix products, without sparsity, as NVIDIA and AMD publish them
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "MI300X": 1307e12,
}


def forward_flops(model: nn.Module, length: int) -> float:
    """Operations a token of one forward pass over sequences of `length`."""
    anything: Any = model
    config = anything.config
    embedding = anything.get_input_embeddings().weight
    head = anything.get_output_embeddings()
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    if getattr(head, "weight", None) is not None and head.weight is not embedding:
        weights -= embedding.numel()
    layers, width = int(config.num_hidden_layers), int(config.hidden_size)
    return 2.0 * weights + 2.0 * layers * length * width


def peak_flops(device_name: str) -> float | None:
    """The published peak of a GPU, or None where it is not known."""
    return next((peak for name, peak in _PEAK_FLOPS.items() if name in device_name), None)
