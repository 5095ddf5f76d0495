"""new_op: the folder of a new op, complete, correct and ready to be edited."""

from tercet.harness.new_op.generate import PATTERNS, NewOp, guide, new_op

__all__ = ["PATTERNS", "NewOp", "guide", "new_op"]
