"""The weights of a decoder as a graph builder asks for them: packed where they are packed."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import PackedTensor
from tercet.models import DecoderConfig, WeightSource, find_architecture, read_config
from tercet.models.architecture import Architecture
from tercet.models.decoder.rope import read_rotations
from tercet.models.decoder.weight_reader import WeightReader


class DecoderWeights:
    """A source of weights, with names and shapes checked against its config.json.

    Args:
        source: where the weights are.
        narrow: give plain tensors in the narrowest dtype that holds them.

    Attributes:
        architecture: what kind of decoder it is.
        config: its sizes.
        inverse: radians per position of each pair of elements of a head, [D/2] float32.

    Raises:
        UnsupportedError: the architecture, or a part of its configuration, is not supported.
    """

    def __init__(self, source: WeightSource, *, narrow: bool = True) -> None:
        if reason := architecture_reason(source.config):
            raise UnsupportedError(reason)
        self.architecture = find_architecture(source.config)
        self.config = read_config(self.architecture, source.config)
        # `architecture_reason` refused every model with more than one kind
        (self.inverse,) = _rotations(self.architecture, self.config, source.config)
        self._source = source
        self._narrow = narrow
        self._reader = WeightReader(source, torch.float32)
        if self.config.tied:
            if self.architecture.head in source.modules:
                raise CheckpointError(
                    f"{self.architecture.head} is packed, but config.json ties it to the "
                    f"embedding: compress again, or set tie_word_embeddings to false"
                )
            self._reader.skip(f"{self.architecture.head}.weight")

    def weight(self, module: str, shape: tuple[int, int]) -> PackedTensor | Tensor:
        """The weight [N, K] of a linear or an embedding; a plain one as `tensor` gives it."""
        if self._reader.is_packed(module, shape):
            return self._source.read_packed(module)
        return self.tensor(f"{module}.weight", shape)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A plain tensor in float32, or the narrowest of bfloat16 and float16 that holds it."""
        found = self._reader.tensor(name, shape)
        for dtype in (torch.bfloat16, torch.float16) if self._narrow else ():
            narrow = found.to(dtype)
            if torch.equal(narrow.float(), found):
                return narrow
        return found

    def finish(self) -> None:
        """CheckpointError where a tensor was left unused: it is then not the stored model."""
        self._reader.finish()


class DequantizedSource:
    """A packed checkpoint as a source of plain float32 weights only: the twin of an export."""

    def __init__(self, checkpoint: PackedCheckpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the model."""
        return self._checkpoint.config

    @property
    def modules(self) -> Mapping[str, PackedModule]:
        """None: nothing is packed here."""
        return {}

    def names(self) -> Iterable[str]:
        """Every plain tensor, and `MODULE.weight` of every packed module."""
        packed = [f"{module}.weight" for module in self._checkpoint.modules]
        return [*self._checkpoint.names(), *packed]

    def tensor(self, name: str) -> Tensor:
        """One of those tensors."""
        module = name.removesuffix(".weight")
        if module in self._checkpoint.modules:
            return self._checkpoint.read_packed(module).dequantize()
        return self._checkpoint.tensor(name)

    def read_packed(self, module: str) -> PackedTensor:
        """Never there."""
        raise CheckpointError(f"{module}: nothing is packed in a dequantized model")

    def input_scale(self, module: str) -> Tensor:
        """Never there."""
        raise CheckpointError(f"{module}: nothing is packed in a dequantized model")


def architecture_reason(config: Mapping[str, object]) -> str | None:
    """Why a decoder graph cannot be built for this config.json; None where it can."""
    try:
        architecture = find_architecture(config)
        sizes = read_config(architecture, config)
        rotations = _rotations(architecture, sizes, config)
    except UnsupportedError as error:
        return str(error)
    found = {
        "state space": sizes.state_space is not None,
        "factors on embedding, scores, residuals or logits": sizes.scaled,
        "rotation of only a part of each head": any(
            2 * len(one) != sizes.head_dim for one in rotations
        ),
        "rotation by layers": len(rotations) > 1,
        "mixture of experts": sizes.mixture is not None,
        "caps on scores or logits": bool(sizes.score_cap or sizes.logits_cap),
        "norms but those before attention and network, and of heads": not _usual_norms(
            architecture
        ),
        "queries, keys and values, or gate and up, in one matrix": not _separate(architecture),
    }
    wrong = [what for what, there in found.items() if there]
    if wrong:
        return (
            f"the graph of a decoder has no {', no '.join(wrong)} ({architecture.name}): export to "
            f"huggingface, which takes every architecture"
        )
    return None


def _rotations(
    architecture: Architecture, sizes: DecoderConfig, config: Mapping[str, object]
) -> tuple[Tensor, ...]:
    """The kinds of rotation, radians per position [D/2] of each."""
    return read_rotations(architecture, config, sizes.layers, sizes.head_dim).kinds


def _usual_norms(architecture: Architecture) -> bool:
    before = (architecture.attention_norm, architecture.mlp_norm)
    behind = (architecture.attention_output_norm, architecture.mlp_output_norm)
    usual = before == ("input_layernorm", "post_attention_layernorm") and not any(behind)
    return usual and not architecture.norm_offset and architecture.qk_norm != "projection"


def _separate(architecture: Architecture) -> bool:
    return len(architecture.queries_keys_values) == 3 and len(architecture.gate_up) == 2
