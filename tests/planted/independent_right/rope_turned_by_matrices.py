"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "rope"
UNUSUAL = (
    "Each pair is multiplied by a 2 x 2 matrix, by einsum in float64; heads one after the other."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(q, k, cos, sin, interleaved):
    c, s = cos.double(), sin.double()
    matrix = torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2)
    return _turn(q, matrix, interleaved), _turn(k, matrix, interleaved)


def gradient(grad_q, grad_k, cos, sin, interleaved):
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x, matrix, interleaved):
    r = matrix.shape[-3]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y[..., 2 * r :] = x[..., 2 * r :]
    for head in range(x.shape[2]):
        part = x[:, :, head, : 2 * r].double()
        pairs = part.unflatten(-1, (r, 2)) if interleaved else part.unflatten(-1, (2, r)).mT
        turned = (matrix * pairs[..., None, :]).sum(-1)
        turned = turned if interleaved else turned.mT
        y[:, :, head, : 2 * r] = turned.flatten(-2)
    return y
