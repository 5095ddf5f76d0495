"""The weights to aim at when the layers before have changed the inputs.

With t the uncompressed model's input and x the compressed one's, the weights of least output error
E |W t - Q x|^2 are W* = W C H^-1, C = E[t x^T], H = E[x x^T] (asymmetric calibration, as in GPTAQ,
arXiv:2504.02692), up to a constant the same objective as for W with W* in its place. Calibration
text is finite, so only a share of the way is gone and H is damped.
"""

from typing import cast

import torch
from torch import Tensor

from tercet.compress.algorithm import Statistics

_DAMPING = 0.05


def target_weight(weight: Tensor, statistics: Statistics, share: float) -> Tensor:
    """W + share (W* - W), [N, K] float32; W itself where the uncompressed model is not followed."""
    if statistics.cross is None or not share:
        return weight
    gram = statistics.gram.double()
    damped = gram.clone()
    mean = damped.diagonal().mean()
    damped.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    lower = cast(Tensor, torch.linalg.cholesky(damped))
    drift = weight.double() @ (statistics.cross.double() - gram)
    correction = torch.cholesky_solve(drift.T, lower).T
    return (weight.double() + share * correction).to(weight.dtype)
