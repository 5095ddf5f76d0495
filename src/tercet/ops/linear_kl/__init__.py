"""linear_kl: two heads' products and a divergence between them, without whole logits."""

from tercet.ops.linear_kl.op import linear_kl

__all__ = ["linear_kl"]
