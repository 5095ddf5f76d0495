"""The weights to aim at when the layers before have changed the inputs.

With t the uncompressed model's input and x the compressed one's, the weights of least output error
E |W t - Q x|^2 are W* = W C H^-1, C = E[t x^T], H = E[x x^T] (asymmetric calibration, as in GPTAQ,
arXiv:2504.02692), up to a constant the same objective as for W with W* in its place. Calibration
text is finite, so only a share of the way is gone and H is damped.
"""

import torch
from torch import Tensor

from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.products import multiply_precisely
from tercet.compress.ptq.quadratic import factorize, solve_factored
from tercet.formats.chunks import chunk_rows

_DAMPING = 0.05
# a GPU is idle with few rows
_WEIGHTS_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 26}


def target_weights(
    weights: dict[str, Tensor], statistics: Statistics, share: float
) -> dict[str, Tensor]:
    """W + share (W* - W) for each of some weights W [N, K] with one input, float32.

    W itself where the uncompressed model is not followed.
    """
    if not share or (statistics.drift is None and not statistics.outputs):
        return weights
    gram = statistics.gram
    lower = torch.empty(gram.shape, dtype=torch.float64, device=gram.device).mT.copy_(gram)
    mean = lower.diagonal().mean()
    lower.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    lower = factorize(lower)
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        found[name] = torch.empty_like(weight)
        # a head takes eight bytes a weight, several times, if it is not cut
        most = _WEIGHTS_AT_ONCE[weight.device.type] // max(weight.shape[1], 1)
        for rows in chunk_rows(len(weight), max(most, 1)):
            # W (C - H)
            if statistics.drift is not None:
                apart = multiply_precisely(weight[rows], statistics.drift)
            else:
                made = statistics.outputs[name][rows]
                apart = made - multiply_precisely(weight[rows], statistics.gram)
            correction = solve_factored(lower, apart.T.double()).T
            found[name][rows] = (weight[rows].double() + share * correction).to(weight.dtype)
    return found
