"""The lean decoder: a language model that runs from packed weights, without transformers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import embedding

from tercet.errors import UnsupportedError
from tercet.models.architecture import Architecture
from tercet.models.architectures import find_architecture
from tercet.models.decoder.attention import masks
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.gpu.positions import angle_tables, own_blocks
from tercet.models.decoder.gpu.shared_choice import SharedChoice
from tercet.models.decoder.gpu.token_graph import Choice, TokenGraph, choose_most_probable
from tercet.models.decoder.key_offsets import draw_tokens, find_key_offsets
from tercet.models.decoder.kv_cache import KeyValueCache, check_kv_cache_dtype
from tercet.models.decoder.layer import Layer, Step, load_layer
from tercet.models.decoder.linear import Linear, load_head, tied_head
from tercet.models.decoder.native_layer import NativeLayers
from tercet.models.decoder.norm import Norm, load_norm
from tercet.models.decoder.one_token import BITS, GATES, native
from tercet.models.decoder.rope import angles, read_rotations
from tercet.models.decoder.state_space.states import RecurrentStates
from tercet.models.decoder.tensor_parallel.cut import cut_config
from tercet.models.decoder.tensor_parallel.group import RankGroup
from tercet.models.decoder.tensor_parallel.rank_source import RankSource
from tercet.models.decoder.weight_reader import WeightReader
from tercet.models.packed_modules import PackedEmbedding, load_packed_embedding
from tercet.models.weight_source import WeightSource
from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.cached_rows import INT4

if TYPE_CHECKING:
    from tercet.models.decoder.gpu.prompts import Prompts
    from tercet.models.decoder.gpu.token_step import TokenStep

# what bounds the activations of a prompt: more costs little speed less
_PROMPT_CHUNK, _PROMPT_CHUNK_GPU = 512, 2048


class Decoder:
    """A decoder for inference; made by `from_checkpoint`.

    Sequences of a batch are of one length: there is no padding.

    Attributes:
        config: its sizes; of a group of ranks this one's.
        dtype: of activations and plain weights.
        kv_cache_dtype: the codes that its caches keep keys and values as; None for numbers of
            `dtype`.
        group: the ranks that run the decoder together; None for a decoder of one process.
    """

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        inverse: tuple[Tensor, ...],
        tokens: PackedEmbedding | Tensor,
        layers: list[Layer],
        norm: Norm,
        head: Linear,
        kv_cache_dtype: str | None = None,
        group: RankGroup | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.kv_cache_dtype = kv_cache_dtype
        self.group = group
        self._inverse = inverse
        self._embed = _Embed(tokens, config.embedding_factor)
        self._layers = layers
        self._norm = norm
        self._head = head
        self._graph: TokenGraph | None = None

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a loaded model cannot be copied or pickled: it maps its files and holds addresses; "
            "load it again where it is wanted: on a CPU both use the same memory"
        )

    @property
    def device(self) -> torch.device:
        """Of all weights."""
        return self._inverse[0].device

    @property
    def prompt_chunk(self) -> int:
        """The new positions of a sequence that are best run at once."""
        return _PROMPT_CHUNK_GPU if self.device.type == "cuda" else _PROMPT_CHUNK

    @property
    def captured(self) -> bool:
        """Whether single tokens are a captured graph: on a GPU, unless there are state spaces."""
        return self.device.type == "cuda" and self.config.state_space is None

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: WeightSource,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kv_cache_dtype: str | None = None,
        group: RankGroup | None = None,
    ) -> "Decoder":
        """Loads tensor by tensor: the peak is the packed size and one tensor.

        Args:
            checkpoint: of an architecture that is known.
            dtype: of activations and plain weights.
            device: a CUDA device runs single tokens as one captured graph; see `captured`.
            kv_cache_dtype: "int8", "fp8_e4m3" or "int4": codes that keys and values are kept as,
                each of a head with a scale; None for numbers of `dtype`.
            group: ranks that run the decoder together, each with a part of its products: all of
                them load it, and then make the same calls; None for a decoder of one process.

        Raises:
            UnsupportedError: the architecture, a part of its configuration or the cache's dtype is
                not supported, or the weights cannot be cut over so many ranks.
            CheckpointError: a tensor is missing, of another shape than config.json says, or unused.
        """
        check_kv_cache_dtype(kv_cache_dtype, device)
        architecture = find_architecture(checkpoint.config)
        config = read_config(architecture, checkpoint.config)
        source = checkpoint
        if group is not None:
            source = RankSource(checkpoint, architecture, config, group.rank, group.world_size)
            config = cut_config(config, group.world_size)
        reader = WeightReader(source, dtype, device)
        tokens = _load_tokens(reader, architecture, config)
        shape = (config.vocabulary, config.hidden)
        norm = load_norm(
            reader,
            architecture.norm,
            config.hidden,
            epsilon=config.norm_epsilon,
            offset=architecture.norm_offset,
        )
        ropes = read_rotations(architecture, checkpoint.config, config.layers, config.head_dim)
        layers = [
            load_layer(reader, architecture, config, index, rope, group)
            for index, rope in enumerate(ropes.of_layer)
        ]
        tied = tied_head(tokens) if config.tied else None
        head = load_head(reader, architecture.head, shape, tied)
        reader.finish()
        return cls(
            config,
            dtype,
            tuple(inverse.to(device) for inverse in ropes.kinds),
            tokens,
            layers,
            norm,
            head,
            kv_cache_dtype,
            group,
        )

    def cache(self, batch: int = 1) -> KeyValueCache:
        """An empty cache for so many sequences."""
        return self._new_cache(batch, self.kv_cache_dtype, self._key_offsets)

    def _new_cache(
        self, batch: int, codes: str | None, key_offsets: list[Tensor] | None
    ) -> KeyValueCache:
        config, states = self.config, None
        if config.state_space is not None:
            states = RecurrentStates(
                config.state_space, config.layers, batch, self.dtype, self.device
            )
        return KeyValueCache(
            config.layers,
            batch,
            config.key_value_heads,
            config.head_dim,
            self.dtype,
            self.device,
            codes,
            states,
            key_offsets,
        )

    @cached_property
    def _key_offsets(self) -> list[Tensor] | None:
        """Of each layer; None where keys are not in 4 bits, or scores are capped."""
        if self.kv_cache_dtype != INT4 or self.config.score_cap is not None:
            return None
        cache = self._new_cache(1, None, None)
        with torch.inference_mode():
            self._run(draw_tokens(self.config.vocabulary), cache)
            keys = [part[:, :, : cache.length] for part in cache.all_positions()[0]]
            return find_key_offsets(keys, self._inverse, [layer.rope for layer in self._layers])

    @torch.inference_mode()
    def logits(self, ids: Tensor, last_only: bool = False) -> Tensor:
        """Scores of the next token after each position of ids [B, T].

        Returns:
            [B, T, V], or [B, 1, V] with `last_only`, in the decoder's dtype.
        """
        return self._forward(ids, self.cache(ids.shape[0]), last_only)

    @torch.inference_mode()
    def logits_at(self, ids: Tensor, where: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Scores of the next token after some positions of ids [B, T], which `cache` precedes.

        The head is multiplied with these positions only; with padding on the right, those of a
        sequence do not depend on its padding.

        Args:
            ids: the new positions.
            where: bool [B, T], which of them are scored.
            cache: what comes before; it is extended. None for nothing.

        Returns:
            [count of where, V], sequence after sequence, in the decoder's dtype.
        """
        hidden = self._run(ids, self.cache(ids.shape[0]) if cache is None else cache)
        return self._scores(hidden[where.reshape(-1).to(hidden.device)])

    @torch.inference_mode()
    def fill(self, ids: Tensor, cache: KeyValueCache) -> None:
        """Appends ids [B, T] to what `cache` holds, and scores nothing."""
        self._run(ids, cache)

    @torch.inference_mode()
    def extend(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Appends ids [B, T] to what `cache` holds; scores [B, V] of the token after the last.

        Scores of single tokens that are `captured` are overwritten by the next call's.
        """
        _check(ids)
        if ids.shape[1] == 1 and self.captured:
            return self._replay(ids[:, 0], cache)
        return self._forward(ids, cache, last_only=True)[:, 0]

    @torch.inference_mode()
    def follow(
        self,
        ids: Sequence[int],
        cache: KeyValueCache,
        count: int,
        choose: Choice = choose_most_probable,
    ) -> Iterator[list[int]]:
        """`count` tokens of each sequence after ids [B], fed back on the GPU: a [B] at a time.

        The next ones are under way while some are read, so the cache of sequences that are left
        early holds one position more than were read.

        Args:
            ids: the token that each sequence goes on after; they are `captured`.
            cache: of all positions before.
            count: how many follow.
            choose: each token from its scores; by default the most probable one.
        """
        cache.reserve(cache.length + count)
        read = torch.empty(2, len(ids), dtype=torch.int64, pin_memory=True)
        events = [torch.cuda.Event() for _ in range(2)]
        last, fed = None, torch.tensor(ids)
        for at in range(count):
            graph = self._graph_of(cache, choose, fed)
            cache.advance(1)
            # another sequence may have run since, and taken the place of this one's graph
            graph.run(None if graph is last else fed, cache.length)
            last, fed = graph, graph.top
            read[at % 2].copy_(fed, non_blocking=True)
            events[at % 2].record(torch.cuda.current_stream(self.device))
            if at:
                events[(at - 1) % 2].synchronize()
                yield read[(at - 1) % 2].tolist()
        if count > 0:
            events[(count - 1) % 2].synchronize()
            yield read[(count - 1) % 2].tolist()

    def share_choice(self, token: int) -> int:
        """The token that the first rank chose; the token itself in a decoder of one process."""
        if self.group is None:
            return token
        return int(self.group.copy_first_(torch.tensor(token, device=self.device)))

    def _replay(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        cache.reserve(cache.length + 1)
        graph = self._graph_of(cache)
        cache.advance(1)
        return graph.run(ids, cache.length)

    def _graph_of(
        self,
        cache: KeyValueCache,
        choose: Choice = choose_most_probable,
        ids: Tensor | None = None,
    ) -> TokenGraph:
        """The captured step of the cache as it is; the last one is kept."""
        if self.group is not None:
            choose = SharedChoice(choose, self.group)
        if self._graph is None or not self._graph.fits(cache, choose):
            self._graph = None  # its memory is free for the next one's
            step = self.token_step(cache.batch, cache.capacity)
            self._graph = TokenGraph(step, cache, choose, ids)
        return self._graph

    def token_step(self, batch: int, positions: int) -> "TokenStep":
        """The step of one new position; each sequence's positions are one block."""
        # a CPU runs none of its six ops: importing them takes 20 ms of each start
        from tercet.models.decoder.gpu.token_step import TokenStep

        cos, sin = angle_tables(self._inverse, positions)
        return TokenStep(
            config=self.config,
            embed=self._embed,
            layers=self._layers,
            norm=self._norm,
            head=self._head,
            cos=cos,
            sin=sin,
            blocks=own_blocks(batch, self.device),
            key_offsets=self._key_offsets,
        )

    @cached_property
    def _prompts(self) -> "Prompts":
        """What a GPU runs prompts by."""
        from tercet.models.decoder.gpu.prompt_graph import PromptGraphs
        from tercet.models.decoder.gpu.prompts import Prompts

        return Prompts(
            config=self.config,
            dtype=self.dtype,
            embed=self._embed,
            layers=self._layers,
            inverse=self._inverse,
            graphs=PromptGraphs(self.group),
        )

    def _forward(self, ids: Tensor, cache: KeyValueCache, last_only: bool) -> Tensor:
        hidden = self._run(ids, cache)
        if last_only:
            hidden = hidden.view(*ids.shape, -1)[:, -1]
        return self._scores(hidden).view(ids.shape[0], -1, self.config.vocabulary)

    def _scores(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden [N, hidden]."""
        return self.config.logits(self._head(self._norm(hidden)))

    def _run(self, ids: Tensor, cache: KeyValueCache) -> Tensor:
        """Appends ids [B, T] to the cache; what leaves the last layer [B * T, hidden]."""
        _check(ids)
        ids = ids.to(self.device)
        if self.captured:
            return self._prompts.run(ids, cache)
        batch, count = ids.shape
        by = tuple(angles(one, cache.length, count, self.dtype) for one in self._inverse)
        hidden = self._embed(ids.reshape(-1))
        functions = native() if self._native_applies(cache) else None
        if count == 1 and functions is not None and self.native_layers is not None:
            cache.advance(1)
            self.native_layers(hidden, by, cache)
            return hidden
        positions = cache.extend(count)
        step = Step(
            batch=batch,
            angles=by,
            masks=masks(self.config.windows, count, cache.length, ids.device),
            native=functions,
        )
        for layer, of_layer in zip(self._layers, positions, strict=True):
            layer.forward_(hidden, step, of_layer)
        return hidden

    def _native_applies(self, cache: KeyValueCache) -> bool:
        config = self.config
        held = cache.held.dtype in BITS
        plain = self.device.type == "cpu" and self.dtype == torch.float32 and held
        whole = all(2 * len(inverse) == config.head_dim for inverse in self._inverse)
        return plain and config.activation in GATES and whole

    @cached_property
    def native_layers(self) -> NativeLayers | None:
        """All layers as one C++ function; None where one is more than packed products."""
        functions, whole = native(), [layer.whole for layer in self._layers]
        if functions is None or None in whole:
            return None
        kinds = [layer.rope for layer in self._layers]
        return NativeLayers(functions, [one for one in whole if one is not None], kinds)


@dataclass(frozen=True, eq=False)
class _Embed:
    """Ids [N] to rows [N, hidden]; no method of the decoder, which keeps graphs that keep it."""

    tokens: PackedEmbedding | Tensor
    factor: float

    def __call__(self, ids: Tensor) -> Tensor:
        if isinstance(self.tokens, PackedEmbedding):
            rows = self.tokens(ids)
        else:
            try:
                rows = embedding(ids, self.tokens)
            except IndexError as error:
                count = len(self.tokens)
                first = int(((ids < 0) | (ids >= count)).nonzero()[0])
                raise out_of_range(int(ids[first]), first, count) from error
        return rows if self.factor == 1 else rows * self.factor


def _check(ids: Tensor) -> None:
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
        raise UnsupportedError(
            f"ids of shape {list(ids.shape)} and {ids.dtype}: must be whole numbers [B, T], "
            f"at least one"
        )


def _load_tokens(
    reader: WeightReader, architecture: Architecture, config: DecoderConfig
) -> PackedEmbedding | Tensor:
    shape = (config.vocabulary, config.hidden)
    if reader.is_packed(architecture.embedding, shape):
        return load_packed_embedding(
            reader.source, architecture.embedding, reader.dtype, reader.device
        )
    return reader.tensor(f"{architecture.embedding}.weight", shape)
