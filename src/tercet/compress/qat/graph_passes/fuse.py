"""Fuse: what quantizes, and what carries gradients, in the graph of a compiled layer.

torch.compile fuses nothing into an operation of ours: a gate's product is written, and read again
to be quantized; `swiglu_quantized` makes its codes at once, from values that were never rounded (of
8192 tokens of 8192 on an H200 in 83 us, not in 143). A norm's output is written twice, once to be
quantized and once for products, which are given the codes and do not read it: they get the norm's
input in its place (43 us become 23). `rms_norm_quantized` saves nothing here: the backward pass
wants the root that it would then have to compute again.
"""

from typing import Any, cast

import torch
from torch.fx import Graph, Node

from tercet.ops.linear_qat.op import OP as PRODUCT
from tercet.ops.quantize_activation.op import OP as QUANTIZE
from tercet.ops.swiglu_quantized.op import OP as GATE

_aten = torch.ops.aten
_CASTS = (torch.ops.prims.convert_element_type.default, _aten._to_copy.default)
_SAME = (_aten.detach.default, _aten.alias.default)
# operations whose first result is codes
MAKE_CODES = (QUANTIZE.run, GATE.run)


def fuse(graph: Graph) -> None:
    """Changes a graph of both passes."""
    for node in graph.find_nodes(op="call_function", target=QUANTIZE.run):
        made, element = cast("tuple[Node, str]", node.args)
        gate = _gate(_uncast(made))
        if gate is not None:
            with graph.inserting_before(node):
                new = graph.call_function(GATE.run, (*gate, element))
            new.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        other = gate[0] if gate is not None else _normed(_uncast(made))
        if other is not None:
            _stand_in(_unaliased(made), other)
    graph.eliminate_dead_code()


def _stand_in(made: Node, other: Node) -> None:
    """Products whose codes are given do not read x: any floats of its shape do in its place."""
    if made.meta["val"].shape != other.meta["val"].shape:
        return
    for user in list(made.users):
        if user.target in _SAME:
            _stand_in(user, other)
        elif user.target is PRODUCT.run and user.args[0] is made and isinstance(user.args[6], Node):
            user.update_arg(0, other)


def _gate(node: Node) -> tuple[Node, Node] | None:
    """gate and up of silu(gate) * up."""
    if node.target is not _aten.mul.Tensor:
        return None
    for left, up in (node.args, node.args[::-1]):
        if not (isinstance(left, Node) and isinstance(up, Node)):
            continue
        gate = _of_silu(_uncast(left))
        if gate is not None and _alike(gate, up):
            return gate, up
    return None


def _of_silu(node: Node) -> Node | None:
    """What silu is taken of; decomposed, x / (1 + exp(-x))."""
    if node.target is _aten.silu.default:
        return _unaliased(cast(Node, node.args[0]))
    if node.target is not _aten.div.Tensor:
        return None
    top, bottom = cast("tuple[Node, Node]", node.args)
    power = _only(bottom, _aten.add.Tensor, 1)
    minus = _only(power, _aten.exp.default)
    inner = _only(minus, _aten.neg.default)
    return _uncast(top) if inner is top else None


def _normed(node: Node) -> Node | None:
    """x of weight * (x * rsqrt(mean(x^2) + eps))."""
    if node.target is not _aten.mul.Tensor:
        return None
    for right in node.args:
        times = _uncast(right) if isinstance(right, Node) else node
        root = times.args[1] if times is not node and times.target is _aten.mul.Tensor else None
        shifted = _only(root, _aten.rsqrt.default) if isinstance(root, Node) else None
        mean = shifted.args[0] if shifted is not None else None
        if isinstance(mean, Node) and mean.target is _aten.mean.dim:
            return _uncast(cast(Node, times.args[0]))
    return None


def _only(node: Node | None, target: Any, *more: Any) -> Node | None:
    """The first argument where that is what the node does, with these others."""
    if node is None or node.target is not target or node.args[1:] != more:
        return None
    return cast(Node, node.args[0])


def _unaliased(node: Node) -> Node:
    while node.target in _SAME:
        node = cast(Node, node.args[0])
    return node


def _uncast(node: Node) -> Node:
    """What was cast to another float, or is the node itself."""
    while node.target in (*_CASTS, *_SAME):
        node = cast(Node, node.args[0])
    return node


def _alike(one: Node, other: Node) -> bool:
    left, right = one.meta["val"], other.meta["val"]
    return left.shape == right.shape and left.dtype == right.dtype
