"""append_kv: new queries and keys rotated, new keys and values written into their blocks."""

from tercet.ops.append_kv.op import append_kv, append_kv_

__all__ = ["append_kv", "append_kv_"]
