"""vLLM's side of packed experts: a layer's matrices, one by one as the files have them, and apply.

vLLM calls an expert's gate, down and up projection w1, w2 and w3 and hands over each tensor by
those names, with the expert's number.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from vllm.model_executor.layers.fused_moe import (
    FusedMoEConfig,
    FusedMoEMethodBase,
    MoEActivation,
    RoutedExperts,
)

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import UnsupportedError
from tercet.export.vllm.arrival import Arrival
from tercet.export.vllm.shard_of import shard_of
from tercet.models.experts_product import ExpertsProduct

_PREFIX_OF = {"w1": "w13", "w3": "w13", "w2": "w2"}
_ACTS: dict[MoEActivation, Callable[[Tensor], Tensor]] = {
    MoEActivation.SILU: functional.silu,
    MoEActivation.GELU: functional.gelu,
}


class PackedExpertsMethod(FusedMoEMethodBase):
    """All experts of one layer, packed.

    Args:
        layer: vLLM's, not yet whole.
        prefix: its name.
        modules: the packed modules below that name.
    """

    def __init__(
        self, layer: RoutedExperts, prefix: str, modules: Mapping[str, PackedModule]
    ) -> None:
        super().__init__(layer.moe_config)
        _check_kind(layer, prefix)
        names = {
            "w1": layer.ckpt_gate_proj_name,
            "w2": layer.ckpt_down_proj_name,
            "w3": layer.ckpt_up_proj_name,
        }
        experts = range(layer.moe_config.num_experts)
        self.modules = {
            part: [f"{prefix}.{index}.{name}" for index in experts] for part, name in names.items()
        }
        expected = {name for part in self.modules.values() for name in part}
        missing = sorted(expected - modules.keys())
        if missing:
            raise UnsupportedError(
                f"{prefix}: {len(missing)} of its {len(expected)} matrices are not packed, the "
                f"first is {missing[0]}: give all experts of a layer a format in the plan, or none"
            )
        self.entries = {name: modules[name] for name in expected}

    def create_weights(
        self,
        layer: nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        *_: Any,
        **__: Any,
    ) -> None:
        """Empty parameters that take what comes."""
        narrow, wide = intermediate_size_per_partition, hidden_size
        shapes = {"w1": (narrow, wide), "w2": (wide, narrow), "w3": (narrow, wide)}
        layer.packed_arrivals = {
            part: self._arrival(names, shapes[part]) for part, names in self.modules.items()
        }
        for part, arrival in layer.packed_arrivals.items():
            for name in arrival.part_names:
                empty = nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
                empty.weight_loader = _taker(layer.packed_arrivals, name)
                layer.register_parameter(f"{_PREFIX_OF[part]}_{name}", empty)

    def _arrival(self, names: list[str], local: tuple[int, int]) -> Arrival:
        modules = [(name, self.entries[name]) for name in names]
        ranks = (self.moe.tp_rank, self.moe.tp_size)
        shards = [shard_of(entry.shape, local, *ranks, name) for name, entry in modules]
        return Arrival(modules, shards)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Into the compute layout of the device."""
        device = next(layer.parameters()).device
        gate, up, down = (
            list(zip(self.modules[part], layer.packed_arrivals[part].weights(), strict=True))
            for part in ("w1", "w3", "w2")
        )
        layer.packed_experts = ExpertsProduct(gate, up, down, _ACTS[layer.activation], device)
        for part, arrival in layer.packed_arrivals.items():
            for name in arrival.part_names:
                layer.register_parameter(f"{_PREFIX_OF[part]}_{name}", None)
        del layer.packed_arrivals

    def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
        """None: no kernel of vLLM's multiplies them."""
        return

    def apply(
        self,
        layer: nn.Module,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        """x [tokens, H] to [tokens, H] in x's dtype."""
        return layer.packed_experts(x, topk_ids, topk_weights)


def _check_kind(layer: RoutedExperts, prefix: str) -> None:
    """UnsupportedError for what the product does not compute, by name."""
    config: FusedMoEConfig = layer.moe_config
    wrong = {
        f"activation {config.activation.value!r}": config.activation not in _ACTS,
        "biases": config.has_bias,
        "router weights on the input": layer.apply_router_weight_on_input,
        "a limit in SwiGLU": layer.swiglu_limit is not None,
        "shared experts among the routed": layer.expert_map_manager.num_fused_shared_experts > 0,
        "experts shared out over ranks (enable_expert_parallel)": layer.use_ep,
    }
    found = [words for words, is_so in wrong.items() if is_so]
    if found:
        raise UnsupportedError(
            f"{prefix}: packed experts with {', '.join(found)} are not held: the plugin holds "
            f"gated ones without biases ({', '.join(act.value for act in _ACTS)}), whole or cut by "
            f"tensor parallel; keep others in the plan (keep: true)"
        )


def _taker(arrivals: Mapping[str, Arrival], part: str) -> Callable[..., bool]:
    # by the names that vLLM calls it with
    def take(loaded_weight: Tensor, shard_id: str, expert_id: int, **_: Any) -> bool:
        arrivals[shard_id].take(expert_id, part, loaded_weight)
        return True

    return take
