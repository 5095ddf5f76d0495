"""linear_cross_entropy: the head's product and the cross entropy, without whole logits."""

from tercet.ops.linear_cross_entropy.op import linear_cross_entropy

__all__ = ["linear_cross_entropy"]
