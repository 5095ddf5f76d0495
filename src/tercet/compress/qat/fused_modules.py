"""Norms and gated MLPs of a transformers model, run by one kernel each where nothing compiles them.

Eager, transformers normalizes in six kernels and gates in two, and autograd keeps what they write.
`rms_norm` and `swiglu` read and write each tensor once, forward and backward: a training step of
four layers of Llama-3-8B's shape takes a tenth less on an H200 (benchmarks/training). Under
torch.compile, which fuses norms and gates into their neighbours, they gain nothing.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.ops.rms_norm import rms_norm
from tercet.ops.swiglu import swiglu

_EPSILONS = ("variance_epsilon", "eps")
_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
# of values of this size epsilon is most of what is divided by
_SMALL = 1e-4


class FusedRMSNorm(nn.Module):
    """y [..., N] = x / rms(x) * weight [N] by one kernel, in x's dtype."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., N] to y [..., N]."""
        return cast(Tensor, rms_norm(x, self.weight, None, self.eps))


class FusedGatedMLP(nn.Module):
    """y = down_proj(silu(gate_proj(x)) * up_proj(x)), the gate by one kernel."""

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        for name in ("gate_proj", "up_proj", "down_proj"):
            self.add_module(name, old.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]."""
        inner: Any = self
        return inner.down_proj(swiglu(inner.gate_proj(x), inner.up_proj(x)))


@torch.no_grad()
def fuse_modules(model: nn.Module) -> int:
    """Replaces the norms and gated MLPs of a model by fused ones that hold the same parameters.

    What a module computes is not taken from its name: a module is replaced only where the fused one
    gives its results on random inputs, so another kind of norm (weights around zero, a bias, a
    partial rotation) stays. Parameters keep their names and their identity.

    Args:
        model: of transformers, with its weights, before its linears are swapped.

    Returns:
        How many modules were replaced.
    """
    count = 0
    modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    for name, old in list(modules):
        new = _fused(old)
        if new is not None:
            model.set_submodule(name, new.train(old.training))
            count += 1
    return count


def _fused(old: nn.Module) -> nn.Module | None:
    """The fused module that computes the same; None where there is none."""
    children = {name for name, _ in old.named_children()}
    if children == _GATED and not list(old.parameters(recurse=False)):
        projection = cast(Any, old).gate_proj
        width, dtype = projection.in_features, projection.weight.dtype
        device = projection.weight.device
        new: nn.Module = FusedGatedMLP(old)
    elif not children and [name for name, _ in old.named_parameters()] == ["weight"]:
        weight = cast(nn.Parameter, old.weight)
        eps = next((getattr(old, name) for name in _EPSILONS if hasattr(old, name)), None)
        if weight.dim() != 1 or not isinstance(eps, float) or "RMSNorm" not in type(old).__name__:
            return None
        width, dtype, device = weight.shape[0], weight.dtype, weight.device
        new = FusedRMSNorm(weight, eps)
    else:
        return None
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.randn(4, width, generator=generator, device=device, dtype=torch.float32)
    x = (drawn * torch.tensor([1.0, 30.0, 1.0, _SMALL], device=device)[:, None]).to(dtype)
    return new if _agree(old(x), new(x)) else None


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether two results have one shape and dtype, and differ by roundings only."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    limit = 8 * torch.finfo(one.dtype).eps * one.float().abs().amax(-1, keepdim=True)
    return bool(((one.float() - other.float()).abs() <= limit).all())
