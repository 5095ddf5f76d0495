"""A planted fault; FAULT says which."""

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "Cos and sin in float32 are rounded to q's 16 bits first (as a model's .to(q.dtype) "
    "does): wrong where the two products nearly cancel."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(q, k, cos, sin, interleaved):
    cos, sin = cos.to(q.dtype).float(), sin.to(q.dtype).float()
    return torch_path.forward(q, k, cos, sin, interleaved)


def gradient(grad_q, grad_k, cos, sin, interleaved):
    return forward(grad_q, grad_k, cos, -sin, interleaved)
