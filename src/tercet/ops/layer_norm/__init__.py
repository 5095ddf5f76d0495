"""layer_norm: y = (x - mean(x)) / std(x) * weight + bias."""

from tercet.ops.layer_norm.op import layer_norm

__all__ = ["layer_norm"]
