"""paged_attention: attention of a few new positions over keys and values that lie in blocks."""

from tercet.ops.paged_attention.op import paged_attention

__all__ = ["paged_attention"]
