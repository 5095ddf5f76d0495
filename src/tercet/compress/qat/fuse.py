"""Fuse: norms and gates that quantize what they make, in the graph of a compiled layer.

torch.compile fuses nothing into an operation of ours: a norm's output is written in the layer's
dtype, and read again to be quantized. `rms_norm_quantized` and `swiglu_quantized` make its codes at
once, from values that were never rounded. What differentiates the norm and the gate stays as it is:
it reads their inputs.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node

from tercet.ops.linear_qat.op import OP as PRODUCT
from tercet.ops.quantize_activation.op import OP as QUANTIZE
from tercet.ops.rms_norm_quantized.op import OP as NORM
from tercet.ops.swiglu_quantized.op import OP as GATE

_aten = torch.ops.aten
_CASTS = (torch.ops.prims.convert_element_type.default, _aten._to_copy.default)
_SAME = (_aten.detach.default, _aten.alias.default)
# operations whose first result is codes
MAKE_CODES = (QUANTIZE.run, NORM.run, GATE.run)


def fuse(graph: Graph) -> None:
    """Replaces what it finds, in a graph of both passes; their outputs are then read by nothing."""
    for node in graph.find_nodes(op="call_function", target=QUANTIZE.run):
        made, element = cast("tuple[Node, str]", node.args)
        found = _gate(_uncast(made)) or _norm(_uncast(made))
        if found is None:
            continue
        target, inputs = found
        with graph.inserting_before(node):
            new = graph.call_function(target, (*inputs, element))
        values = [one.meta["val"] if isinstance(one, Node) else one for one in new.args]
        with detect_fake_mode(values) or torch.no_grad():
            new.meta["val"] = target(*values)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        _stand_in(_unaliased(made), cast(Node, inputs[0]))
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


def _gate(node: Node) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """swiglu_quantized's inputs of silu(gate) * up."""
    if node.target is not _aten.mul.Tensor:
        return None
    for left, up in (node.args, node.args[::-1]):
        if not (isinstance(left, Node) and isinstance(up, Node)):
            continue
        gate = _of_silu(_uncast(left))
        if gate is not None and _alike(gate, up):
            return GATE.run, (gate, up)
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


def _norm(node: Node) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """rms_norm_quantized's inputs of weight * (x * rsqrt(mean(x^2) + eps))."""
    if node.target is not _aten.mul.Tensor:
        return None
    for weight, right in (node.args, node.args[::-1]):
        if not (isinstance(weight, Node) and isinstance(right, Node)):
            continue
        found = _of_norm(_uncast(right))
        if found is None:
            continue
        x, eps = found
        weight, of = _uncast(weight), x.meta["val"]
        shape, dtype = weight.meta["val"].shape, weight.meta["val"].dtype
        if tuple(shape) == tuple(of.shape[-1:]) and dtype in (of.dtype, torch.float32):
            return NORM.run, (x, weight, None, eps)
    return None


def _of_norm(node: Node) -> tuple[Node, float] | None:
    """x and eps of x * rsqrt(mean(x^2) + eps), the mean over the last axis."""
    if node.target is not _aten.mul.Tensor:
        return None
    wide, root = cast("tuple[Node, Node]", node.args)
    shifted = _only(root, _aten.rsqrt.default)
    if shifted is None or shifted.target is not _aten.add.Tensor:
        return None
    mean, eps = shifted.args
    if not isinstance(mean, Node) or not isinstance(eps, float):
        return None
    if mean.target is not _aten.mean.dim or mean.args[1:] != ([-1], True):
        return None
    square = cast(Node, mean.args[0])
    if square.target is not _aten.pow.Tensor_Scalar or square.args != (wide, 2):
        return None
    return _uncast(wide), eps


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
