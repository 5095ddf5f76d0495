"""attention: of many new positions over keys and values that lie side by side."""

from tercet.ops.attention.op import attention

__all__ = ["attention"]
