"""Muon: momentum whose matrices are made orthogonal, those of a shape all at once.

Keller Jordan et al., 2024 (github KellerJordan/Muon); updates are as large as AdamW's, as in
"Muon is Scalable for LLM Training", arXiv 2502.16982, so that they share its learning rate.
"""

import torch
from torch import Tensor, nn

MOMENTUM, ROUNDS = 0.95, 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LIKE_ADAM = 0.2
"""Root mean square of an update at a learning rate of 1."""


class Muon:
    """Updates of matrices.

    Args:
        parameters: [N, K] float32 each.
        rate: float32 [], the learning rate, read in each step.
    """

    def __init__(self, parameters: list[nn.Parameter], rate: Tensor) -> None:
        self._rate = rate
        shapes = dict.fromkeys(parameter.shape for parameter in parameters)
        self._stacks = [[p for p in parameters if p.shape == shape] for shape in shapes]
        self._momenta = [
            torch.zeros(len(stack), *stack[0].shape, device=stack[0].device)
            for stack in self._stacks
        ]

    @torch.no_grad()
    def step(self) -> None:
        """By the parameters' gradients."""
        for stack, momentum in zip(self._stacks, self._momenta, strict=True):
            gradients = torch.stack([p.grad for p in stack if p.grad is not None])
            momentum.lerp_(gradients, 1 - MOMENTUM)
            update = orthogonal(gradients.lerp(momentum, MOMENTUM))
            size = LIKE_ADAM * max(update.shape[1:]) ** 0.5
            update = update.float() * (-size * self._rate)
            torch._foreach_add_(list(stack), list(update.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly the nearest orthogonal ones of [B, N, K], bfloat16: singular values 0.2 to 1.2."""
    rows, columns = matrices.shape[1:]
    short = matrices if rows <= columns else matrices.mT
    short = (short / (short.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    first, second, third = COEFFICIENTS
    for _ in range(ROUNDS):
        square = short @ short.mT
        polynomial = torch.baddbmm(square, square, square, beta=second, alpha=third)
        short = torch.baddbmm(short, polynomial, short, beta=first)
    return short if rows <= columns else short.mT
