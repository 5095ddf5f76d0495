"""A decoder that keeps its key-value cache, for OpenVINO: weights stay packed (u2, u4, u8)."""

from tercet.export.openvino.target import TARGET

__all__ = ["TARGET"]
