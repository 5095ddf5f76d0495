"""The lean decoder: a language model that runs from packed weights, without transformers."""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from tercet.errors import UnsupportedError
from tercet.models.architecture import Architecture
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.kv_cache import KeyValueCache
from tercet.models.decoder.layer import Layer, Norm, Step, load_layer, masks
from tercet.models.decoder.linear import Linear, load_head, tied_head
from tercet.models.decoder.one_token import native
from tercet.models.decoder.rope import angles, frequencies
from tercet.models.decoder.weight_reader import WeightReader
from tercet.models.packed_modules import PackedEmbedding, load_packed_embedding
from tercet.models.weight_source import WeightSource

# a layer's attention takes 26 us against 60 us in torch at 100 positions, but grows four times as
# fast with them: they meet at about 350
_NATIVE_POSITIONS = 350


class Decoder:
    """A decoder for inference; made by `from_checkpoint`.

    Sequences of a batch are of one length: there is no padding.

    Attributes:
        config: its sizes.
        dtype: of activations and plain weights.
    """

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        inverse: Tensor,
        tokens: PackedEmbedding | Tensor,
        layers: list[Layer],
        norm: Norm,
        head: Linear,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._inverse = inverse
        self._tokens = tokens
        self._layers = layers
        self._norm = norm
        self._head = head

    @classmethod
    def from_checkpoint(
        cls, checkpoint: WeightSource, dtype: torch.dtype = torch.float32
    ) -> "Decoder":
        """Loads tensor by tensor: the peak is the packed size and one tensor.

        Raises:
            UnsupportedError: the architecture, or a part of its configuration, is not supported.
            CheckpointError: a tensor is missing, of another shape than config.json says, or unused.
        """
        architecture = find_architecture(checkpoint.config)
        config = read_config(architecture, checkpoint.config)
        reader = WeightReader(checkpoint, dtype)
        tokens = _load_tokens(reader, architecture, config)
        shape = (config.vocabulary, config.hidden)
        weight = reader.tensor(f"{architecture.norm}.weight", (config.hidden,))
        layers = [load_layer(reader, architecture, config, i) for i in range(config.layers)]
        tied = tied_head(tokens) if config.tied else None
        head = load_head(reader, architecture.head, shape, tied)
        reader.finish()
        return cls(
            config,
            dtype,
            frequencies(checkpoint.config, config.head_dim),
            tokens,
            layers,
            Norm(weight=weight, epsilon=config.norm_epsilon),
            head,
        )

    def cache(self, batch: int = 1) -> KeyValueCache:
        """An empty cache for so many sequences."""
        config = self.config
        return KeyValueCache(
            config.layers, batch, config.key_value_heads, config.head_dim, self.dtype
        )

    @torch.inference_mode()
    def logits(self, ids: Tensor, last_only: bool = False) -> Tensor:
        """Scores of the next token after each position of ids [B, T].

        Returns:
            [B, T, V], or [B, 1, V] with `last_only`, in the decoder's dtype.
        """
        return self._forward(ids, self.cache(ids.shape[0]), last_only)

    @torch.inference_mode()
    def extend(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Appends ids [B, T] to what `cache` holds; scores [B, V] of the token after the last."""
        return self._forward(ids, cache, last_only=True)[:, 0]

    def _forward(self, ids: Tensor, cache: KeyValueCache, last_only: bool) -> Tensor:
        if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
            raise UnsupportedError(
                f"ids of shape {list(ids.shape)} and {ids.dtype}: must be whole numbers [B, T], "
                f"at least one"
            )
        batch, count = ids.shape
        new, keys, values = cache.extend(count)
        step = Step(
            batch=batch,
            angles=angles(self._inverse, cache.length - count, count, self.dtype),
            masks=masks(self.config.windows, count, cache.length, ids.device),
            native=native() if count == 1 and self._native_applies(cache.length) else None,
        )
        hidden = self._embed(ids.reshape(-1))
        for layer, *slots in zip(self._layers, new, keys, values, strict=True):
            layer.forward_(hidden, step, *slots)
        if last_only:
            hidden = hidden.view(batch, count, -1)[:, -1]
        return self._head(self._norm(hidden)).view(batch, -1, self.config.vocabulary)

    def _native_applies(self, length: int) -> bool:
        plain = self._inverse.device.type == "cpu" and self.dtype == torch.float32
        return plain and self.config.activation == "silu" and length <= _NATIVE_POSITIONS

    def _embed(self, ids: Tensor) -> Tensor:
        if isinstance(self._tokens, PackedEmbedding):
            return self._tokens(ids)
        return embedding(ids, self._tokens)


def _load_tokens(
    reader: WeightReader, architecture: Architecture, config: DecoderConfig
) -> PackedEmbedding | Tensor:
    shape = (config.vocabulary, config.hidden)
    if reader.is_packed(architecture.embedding, shape):
        return load_packed_embedding(reader.source, architecture.embedding, reader.dtype)
    return reader.tensor(f"{architecture.embedding}.weight", shape)
