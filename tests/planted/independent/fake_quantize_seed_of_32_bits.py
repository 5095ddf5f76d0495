"""A planted fault; FAULT says which."""

from tercet.ops.fake_quantize.torch_path import forward as _forward
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "The Philox key is the lower half of the seed: other codes for seeds of 2^32 or more and "
    "for negative ones."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]


def forward(weight, step, seed, scheme, method, fake_dtype):
    if seed is not None:
        seed = seed.reshape(()) & 0xFFFFFFFF  # Philox takes words of 32 bits
    return _forward(weight, step, seed, scheme, method, fake_dtype)
