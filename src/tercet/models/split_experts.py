"""SplitExperts: the experts of a mixture as linear layers, named as checkpoints name them.

transformers holds the experts of a layer as two 3-D parameters, `gate_up_proj` [E, 2 I, H] and
`down_proj` [E, H, I]. Files hold one matrix for each expert and projection, and so does a packed
checkpoint: `experts.3.gate_proj`, `experts.3.up_proj` [I, H] and `experts.3.down_proj` [H, I].
"""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

SHARED_GATE = "shared_expert_gate"
"""One row that weighs the shared expert: a router, which like the others is never packed."""


class Expert(nn.Module):
    """One gated feed-forward network: x [.., H] to [.., H]."""

    def __init__(self, hidden: int, inner: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        self.act_fn = act

    def forward(self, x: Tensor) -> Tensor:
        """x [.., H] to [.., H]."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class SplitExperts(nn.ModuleList):
    """Takes the place of a fused experts module and computes the same."""

    def forward(self, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """The experts' outputs, weighted and added.

        Args:
            hidden: [tokens, H].
            experts: [tokens, top_k], each token's experts.
            weights: [tokens, top_k], how much each of them counts.
        """
        total = torch.zeros_like(hidden)
        for index in cast("list[int]", experts.unique().tolist()):
            token, place = torch.where(experts == index)
            found = self[index](hidden[token]) * weights[token, place, None]
            total.index_add_(0, token, found.to(total.dtype))
        return total


def fused_experts(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model, by name, that `split` takes apart.

    They are those that compute what Qwen3's experts do, line by line, which most mixtures of
    transformers do: down(act(gate(x)) * up(x)), without biases.
    """
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    fused = {
        name: module
        for name, module in named
        if type(module).__name__.endswith("Experts") and hasattr(module, "gate_up_proj")
    }
    if not fused:
        return {}
    # imported here, since it takes time and few models have experts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    known = _lines(Qwen3MoeExperts)
    return {name: module for name, module in fused.items() if _lines(type(module)) == known}


def _lines(kind: type[nn.Module]) -> tuple[object, ...]:
    """What a class computes: its instructions, and the names that they are about."""
    code = inspect.unwrap(kind.forward).__code__
    return code.co_code, code.co_names, code.co_varnames


def split(model: nn.Module, names: Iterable[str]) -> None:
    """Puts a SplitExperts, its weights on the meta device, in the place of each module named."""
    for name in names:
        fused: Any = model.get_submodule(name)
        experts, hidden, inner = cast(Tensor, fused.down_proj).shape
        with torch.device("meta"):
            made = SplitExperts(Expert(hidden, inner, fused.act_fn) for _ in range(experts))
        model.set_submodule(name, made.to(fused.down_proj.dtype).train(fused.training))


_NUMBERED = re.compile(r"(\.experts\.\d+\.)w([123])\.")
_PROJECTIONS = {"1": "gate_proj", "2": "down_proj", "3": "up_proj"}


def expert_name(stored: str) -> str:
    """A stored name with `w1`, `w2` and `w3` of an expert, as Mixtral has them, by their names."""
    return _NUMBERED.sub(lambda found: f"{found[1]}{_PROJECTIONS[found[2]]}.", stored)


def is_expert(module: str) -> bool:
    """Whether a module of that name is part of an expert, which sees a share of the tokens."""
    return ".experts." in module
