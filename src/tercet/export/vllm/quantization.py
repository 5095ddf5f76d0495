"""vLLM's side of a packed checkpoint: which layer is held how, and how it multiplies.

vLLM fuses q, k and v, and gate and up, into one layer each and shares layers out over
tensor-parallel ranks. Here a layer has one empty parameter for each tensor of its weights, which
takes what the files hold, whole; everything else is done by `Arrival`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import (
    get_quantization_config,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from tercet.checkpoints.packed.layout import QUANT_METHOD, PackedModule
from tercet.checkpoints.packed.layout import QuantizationConfig as Section
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.target import is_embedding
from tercet.export.vllm.arrival import Arrival
from tercet.export.vllm.experts_method import PackedExpertsMethod
from tercet.export.vllm.shard_of import shard_of
from tercet.formats.shard import Shard

_PLACE_OF = {"q": 0, "k": 1, "v": 2, None: 0}


class TercetConfig(QuantizationConfig):
    """The `quantization_config` of a packed checkpoint."""

    def __init__(self, modules: Mapping[str, PackedModule]) -> None:
        super().__init__()
        self.modules = dict(modules)

    def get_name(self) -> str:
        """As config.json has it."""
        return QUANT_METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """What the packed product takes."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Of the GPU; older ones fall to the torch path."""
        return 70

    @staticmethod
    def get_config_filenames() -> list[str]:
        """None: config.json says it all."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TercetConfig":
        """Checked by Tercet's own reader of the section."""
        return cls(Section.model_validate(config).modules)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Translate the checkpoint's module names to those of the vLLM model."""
        self.modules = hf_to_vllm_mapper.apply_dict(self.modules)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """How a layer of that name is held; None leaves it to vLLM.

        Raises:
            UnsupportedError: only some of the modules that it fuses are packed, or it is none that
                the plugin knows.
        """
        names = self._modules_of(prefix)
        found = [name for name in names if name in self.modules]
        if found and len(found) < len(names):
            missing = sorted(set(names) - set(found))
            raise UnsupportedError(
                f"{prefix}: {', '.join(found)} packed beside {', '.join(missing)}, which is not: "
                f"vLLM multiplies them as one: give all of them a format in the plan, or none"
            )
        entries = [(name, self.modules[name]) for name in found]
        if isinstance(layer, VocabParallelEmbedding):
            if entries:
                return PackedEmbeddingMethod(entries)
            return TiedHeadMethod() if isinstance(layer, ParallelLMHead) else None
        if isinstance(layer, LinearBase):
            return PackedLinearMethod(entries) if entries else KeptLinearMethod(prefix)
        inside = [(name, self.modules[name]) for name in self.modules if _is_in(name, prefix)]
        if inside and isinstance(layer, RoutedExperts):
            return PackedExpertsMethod(layer, prefix, dict(inside))
        if inside and "Experts" in type(layer).__name__:
            raise UnsupportedError(
                f"{inside[0][0]} is packed, and the plugin knows no {type(layer).__name__}: keep "
                f"its experts in the plan (keep: true)"
            )
        return None

    def _modules_of(self, prefix: str) -> list[str]:
        """The modules of the checkpoint that the layer is made of."""
        if not prefix:
            # vLLM's Llama does not tell its embedding's name
            return [name for name in self.modules if is_embedding(name)][:1] or [""]
        parent, _, last = prefix.rpartition(".")
        names = self.packed_modules_mapping.get(last, [last])
        return [f"{parent}.{name}" if parent else name for name in names]


class PackedLinearMethod(LinearMethodBase):
    """One or several packed linear layers of one input."""

    def __init__(self, modules: list[tuple[str, PackedModule]]) -> None:
        self.modules = modules

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *_: Any,
        **__: Any,
    ) -> None:
        """Empty parameters that take what comes."""
        if len(output_partition_sizes) != len(self.modules):
            raise UnsupportedError(
                f"{self.modules[0][0]}: vLLM cuts it into {len(output_partition_sizes)} parts, and "
                f"the checkpoint holds {len(self.modules)}: pack its parts as modules of their own"
            )
        shards = [
            shard_of(entry.shape, (rows, input_size_per_partition), *_ranks(layer), name)
            for (name, entry), rows in zip(self.modules, output_partition_sizes, strict=True)
        ]
        _expect(layer, Arrival(self.modules, shards))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Into the compute layout of the device."""
        _finish(layer, sum(layer.output_partition_sizes))

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        return layer.packed_product(x, bias)


class KeptLinearMethod(UnquantizedLinearMethod):
    """A linear layer in floating point.

    vLLM leaves what no file holds uninitialized, without a word: here it is NaN until it is loaded,
    and refused where it stays so.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def create_weights(self, layer: nn.Module, *args: Any, **kwargs: Any) -> None:
        """vLLM's own parameters."""
        super().create_weights(layer, *args, **kwargs)
        layer.weight.data.fill_(torch.nan)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """CheckpointError where numbers are missing."""
        if layer.weight.isnan().any():
            raise CheckpointError(
                f"{self.prefix}: vLLM builds this layer from config.json, and the checkpoint holds "
                f"no weights for it, or NaN: a mixture without shared experts, say, must not name "
                f"shared_expert_intermediate_size"
            )
        super().process_weights_after_loading(layer)


class PackedEmbeddingMethod(QuantizeMethodBase):
    """An embedding or a head, and an embedding that is the head as well."""

    def __init__(self, modules: list[tuple[str, PackedModule]]) -> None:
        self.modules = modules

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        """Empty parameters that take what comes."""
        ((name, entry),) = self.modules
        indices = layer.shard_indices
        if entry.shape[0] != layer.org_vocab_size or layer.num_added_embeddings:
            raise UnsupportedError(
                f"{name}: {entry.shape[0]} rows are packed, vLLM asks for {layer.org_vocab_size} "
                f"and {layer.num_added_embeddings} added ones: load it without added embeddings"
            )
        shard = Shard(
            first_row=indices.org_vocab_start_index,
            end_row=indices.org_vocab_end_index,
            first_column=0,
            end_column=entry.shape[1],
        )
        _expect(layer, Arrival(self.modules, [shard]))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Into the compute layout of the device; logits that fill up the vocabulary are 0."""
        _finish(layer, layer.num_embeddings_per_partition)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [.., K] to logits [.., V] in x's dtype."""
        return layer.packed_product(x, bias)

    def embedding(self, layer: nn.Module, ids: Tensor) -> Tensor:
        """ids [..] to rows [.., K] in the model's dtype."""
        return layer.packed_product.rows_of(ids, layer.params_dtype)


class TiedHeadMethod(UnquantizedEmbeddingMethod):
    """A head that is not packed; tied to a packed embedding, the embedding takes its place."""

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        """The module that makes the logits."""
        if isinstance(embed_tokens.quant_method, PackedEmbeddingMethod):
            return embed_tokens
        return super().tie_weights(layer, embed_tokens)


def _is_in(module: str, prefix: str) -> bool:
    return module.startswith(f"{prefix}.")


def _ranks(layer: nn.Module) -> tuple[int, int]:
    return layer.tp_rank, layer.tp_size


def _expect(layer: nn.Module, arrival: Arrival) -> None:
    layer.packed_arrival = arrival
    for part in arrival.part_names:
        empty = nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
        empty.weight_loader = _taker(arrival, part)
        layer.register_parameter(part, empty)


def _taker(arrival: Arrival, part: str) -> Callable[..., None]:
    def take(_: Tensor, loaded: Tensor, shard_id: str | int | None = None) -> None:
        arrival.take(_PLACE_OF.get(shard_id, shard_id), part, loaded)

    return take


def _finish(layer: nn.Module, rows: int) -> None:
    arrival: Arrival = layer.packed_arrival
    device = getattr(layer, arrival.part_names[0]).device
    layer.packed_product = arrival.product(device, rows)
    for part in arrival.part_names:
        delattr(layer, part)
    del layer.packed_arrival


def register() -> None:
    """Makes the method known to vLLM; harmless when repeated."""
    try:
        get_quantization_config(QUANT_METHOD)
    except ValueError:
        register_quantization_config(QUANT_METHOD)(TercetConfig)
