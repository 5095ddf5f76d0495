"""Find: what a node of a traced graph computes, however torch decomposed and cast it."""

from typing import Any, cast

import torch
from torch.fx import Node

_aten = torch.ops.aten
_CASTS = (torch.ops.prims.convert_element_type.default, _aten._to_copy.default)
# operations that give what they are given
SAME = (_aten.detach.default, _aten.alias.default)


def silu_of(node: Node) -> Node | None:
    """What silu is taken of; decomposed, x / (1 + exp(-x))."""
    if node.target is _aten.silu.default:
        return unaliased(cast(Node, node.args[0]))
    if node.target is not _aten.div.Tensor:
        return None
    top, bottom = cast("tuple[Node, Node]", node.args)
    power = only(bottom, _aten.add.Tensor, 1)
    minus = only(power, _aten.exp.default)
    inner = only(minus, _aten.neg.default)
    return uncast(top) if inner is top else None


def only(node: Node | None, target: Any, *more: Any) -> Node | None:
    """The first argument where that is what the node does, with these others."""
    if node is None or node.target is not target or node.args[1:] != more:
        return None
    return cast(Node, node.args[0])


def unaliased(node: Node) -> Node:
    """What a node is another name of."""
    while node.target in SAME:
        node = cast(Node, node.args[0])
    return node


def uncast(node: Node) -> Node:
    """What was cast to another float, or is the node itself."""
    while node.target in (*_CASTS, *SAME):
        node = cast(Node, node.args[0])
    return node
