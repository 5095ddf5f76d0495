"""GGUF's names of tensors and Hugging Face's, by architecture."""

import re
from collections.abc import Collection, Iterator

from tercet.checkpoints.gguf.architectures import EXPERT, GgufArchitecture

_MODEL: dict[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

ROPE_DIVISORS = "rope_freqs.weight"


def hugging_face_names(
    stored: str, architecture: GgufArchitecture, experts: int | None = None
) -> list[str]:
    """Hugging Face's names of a GGUF tensor; none if the architecture has no such tensor.

    Args:
        stored: GGUF's name.
        architecture: how the file is laid out.
        experts: of a layer. A tensor that holds a matrix for each of them has a name for each.
    """
    found = re.fullmatch(r"blk\.(\d+)\.(.+)", stored)
    if found is None:
        return [_MODEL[stored]] if stored in _MODEL else []
    tail = architecture.layer.get(found[2])
    if tail is None:
        return []
    prefix = f"model.layers.{found[1]}."
    return [f"{prefix}{one}" for one in _of_experts(tail, experts)]


def is_stacked(stored: str, architecture: GgufArchitecture) -> bool:
    """Whether a GGUF tensor holds a matrix for each expert of a layer."""
    return EXPERT in architecture.layer.get(re.sub(r"^blk\.\d+\.", "", stored), "")


def gguf_name(name: str, architecture: GgufArchitecture) -> str | None:
    """The GGUF name of Hugging Face's, None if the architecture has no such tensor."""
    if found := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name):
        tails = {theirs: ours for ours, theirs in architecture.layer.items()}
        tail = tails.get(re.sub(r"(?<=\bexperts\.)\d+(?=\.)", EXPERT, found[2]))
        return f"blk.{found[1]}.{tail}" if tail is not None else None
    return {theirs: ours for ours, theirs in _MODEL.items()}.get(name)


def first_missing(
    names: Collection[str], architecture: GgufArchitecture, layers: int, experts: int | None
) -> str | None:
    """The first Hugging Face name that a model of so many layers and experts lacks, or None."""
    # one by one: a damaged file may say that it has two thousand million layers
    required = _required_names(architecture, layers, experts)
    return next((name for name in required if name not in names), None)


def _required_names(
    architecture: GgufArchitecture, layers: int, experts: int | None
) -> Iterator[str]:
    yield from ("model.embed_tokens.weight", "model.norm.weight")
    for layer in range(layers):
        for tail in architecture.layer.values():
            yield from (f"model.layers.{layer}.{one}" for one in _of_experts(tail, experts))


def _of_experts(tail: str, experts: int | None) -> Iterator[str]:
    if EXPERT not in tail:
        yield tail
        return
    yield from (tail.replace(EXPERT, str(expert)) for expert in range(experts or 0))
