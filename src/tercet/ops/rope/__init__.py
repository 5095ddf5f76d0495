"""rope: rotary position embedding of queries and keys, in one launch."""

from tercet.ops.rope.op import rope

__all__ = ["rope"]
