"""embedding_packed: rows of a packed table, decoded one by one."""

from tercet.ops.embedding_packed.op import embedding_packed

__all__ = ["embedding_packed"]
