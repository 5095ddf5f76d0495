"""The second-order proxy of a module's damage: its output error under a Fisher estimate.

With E = Q - W, H = E[x x^T] of the linear's inputs and F the Fisher matrix of its outputs y, that
is E[g g^T] with g the gradient of log q(t | text) in y and t drawn from the model's own q,

    KL(p || q) ~ 1/2 E[(g^T E x)^2] ~ 1/2 sum_i F[i, i] (E H E^T)[i, i]     nats per token

The first step is the KL divergence's second-order expansion around the uncompressed model, where
its gradient vanishes; the second takes gradients and inputs for independent (K-FAC,
arXiv:1503.05671) and F for diagonal. HAWQ-V2 (arXiv:1911.03852) weighs |E|^2 by the mean of the
Hessian's trace instead, which knows neither the inputs nor the outputs of a layer.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from tercet.compress.algorithm import Quantized
from tercet.compress.calibration.stream import batch_size
from tercet.compress.skeleton import Skeleton
from tercet.models.input_transform import InputTransform

_SEED = 0


def output_fisher(
    skeleton: Skeleton, tokens: Tensor, targets: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """F[i, i] [N] of each linear's outputs, by name, on the host.

    Args:
        skeleton: a language model, filled and uncompressed.
        tokens: [windows, length].
        targets: the linears by name; one that no token reaches is left out.
    """
    model: Any = skeleton.model
    sums: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(_SEED)

    def hook_for(name: str) -> Any:
        def keep(gradient: Tensor) -> None:
            found = gradient.detach().float().flatten(0, -2).square().sum(0)
            sums[name] = sums[name] + found if name in sums else found

        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(keep)

        return hook

    def begin(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output.requires_grad_()

    with ExitStack() as stack, torch.enable_grad():
        stack.callback(model.get_input_embeddings().register_forward_hook(begin).remove)
        for name, module in targets.items():
            stack.callback(module.register_forward_hook(hook_for(name)).remove)
        for ids in torch.split(tokens, batch_size(tokens.shape[1], skeleton.device)):
            logits = model(input_ids=ids.to(skeleton.device), use_cache=False).logits
            log_q = logits.flatten(0, -2).float().log_softmax(-1)
            log_q.gather(1, _draw(log_q.detach().exp(), generator)).sum().backward()
    return {name: total.cpu() / tokens.numel() for name, total in sums.items()}


def _draw(q: Tensor, generator: torch.Generator) -> Tensor:
    """An index [positions, 1] of each distribution q [positions, vocabulary]; one on any device."""
    uniform = torch.rand(len(q), 1, generator=generator, dtype=torch.float32).to(q.device)
    return torch.searchsorted(q.cumsum(-1), uniform).clamp(max=q.shape[1] - 1)


def proxy_nats(weight: Tensor, result: Quantized, gram: Tensor, fisher: Tensor) -> float:
    """The proxy above, in nats per token.

    Args:
        weight: W [N, K].
        result: what W became.
        gram: H [K, K].
        fisher: F[i, i] [N], on the host.
    """
    total, fisher = 0.0, fisher.to(weight.device)
    for rows, restored in result.packed.dequantize_by_rows():
        if result.hadamard is not None:
            restored = InputTransform(hadamard=result.hadamard)(restored)
        if result.input_scale is not None:
            restored = restored * result.input_scale
        error = restored.to(weight.device) - weight[rows]
        per_row = ((error @ gram) * error).sum(-1)
        total += float((fisher[rows] * per_row).sum(dtype=torch.float64))
    return total / 2
