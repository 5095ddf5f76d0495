"""new_op: the folder of a new op, complete, correct and ready to be edited."""

from tercet.harness.new_op.generate import NewOp, new_op

__all__ = ["NewOp", "new_op"]
