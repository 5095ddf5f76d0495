"""rms_norm: y = x / rms(x) * weight, with an optional residual added to x first."""

from tercet.ops.rms_norm.op import rms_norm

__all__ = ["rms_norm"]
