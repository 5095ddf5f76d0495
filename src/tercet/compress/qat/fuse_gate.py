"""Fuse gate: gradients of a gate's two products are coded by the kernel that makes them.

A compiled backward pass writes both, and each layer's gradient reads its own again for the codes of
its rows; `gate_gradient` makes codes on the way.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from operator import getitem
from typing import Any, cast

import torch
from torch.fx import Graph, Node

from tercet.compress.qat.find import SAME, only, silu_of, unaliased, uncast
from tercet.ops.linear_qat.gate import fits_gate
from tercet.ops.linear_qat.gate import run as gate_gradient
from tercet.ops.linear_qat.op import GRADIENT, GRADIENT_CODED
from tercet.ops.quantize_activation.op import OP as QUANTIZE

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)


@dataclass(frozen=True, kw_only=True)
class _Gate:
    """Gradients of the layers that made gate and up, and of silu(gate) * up."""

    of_gate: Node
    of_up: Node
    grad: Node
    gate: Node
    up: Node

    @property
    def by_column(self) -> bool:
        """Whether the columns' scales are read: x's scale is folded in, which both share."""
        return self.of_up.args[8] == "int8" and self.of_up.args[10] is not None

    @property
    def alike(self) -> bool:
        values = [node.meta["val"] for node in (self.grad, self.gate, self.up)]
        kinds = {(value.shape, value.dtype) for value in values}
        same = all(self.of_gate.args[at] == self.of_up.args[at] for at in (8, 9, 10))
        return len(kinds) == 1 and same and self.of_up.args[9] is not None


def fuse_gates(graph: Graph) -> None:
    """Changes a graph of both passes."""
    gradients = graph.find_nodes(op="call_function", target=GRADIENT)
    found = [gate for of_up in gradients for gate in _gates(of_up, gradients)]
    for gate in found:
        _fuse(graph, gate)
    graph.eliminate_dead_code()


def _gates(of_up: Node, gradients: Iterable[Node]) -> Generator[_Gate]:
    for grad, gate in _through_gate(of_up):
        for of_gate in gradients:
            up = _through_silu(of_gate, grad, gate)
            if up is not None:
                yield _Gate(of_gate=of_gate, of_up=of_up, grad=grad, gate=gate, up=up)


def _fuse(graph: Graph, found: _Gate) -> None:
    scales = [cast(Node, of.args[5]) for of in (found.of_gate, found.of_up)]
    if not found.alike or not fits_gate(found.gate.meta["val"]):
        return
    if found.by_column and _made_of(scales[0]) != _made_of(scales[1]):
        return
    place = {node: at for at, node in enumerate(graph.nodes)}
    first = min(found.of_gate, found.of_up, key=lambda node: place[node])
    x_scale = cast(Node, first.args[5]) if found.by_column else None
    given = (found.grad, found.gate, found.up, found.of_gate.args[2], found.of_up.args[2], x_scale)
    if any(place[node] > place[first] for node in given if isinstance(node, Node)):
        return
    with graph.inserting_before(first):
        to_gate, to_up, gate_codes, gate_size, up_codes, up_size, *columns = _called(graph, given)
    for of, made, codes, size, column in (
        (found.of_gate, to_gate, gate_codes, gate_size, columns[0]),
        (found.of_up, to_up, up_codes, up_size, columns[1]),
    ):
        cast(Node, of.args[0]).replace_all_uses_with(made)
        of_codes = (codes, size, column if found.by_column else None)
        with graph.inserting_before(of):
            # a node of its own: the old one's meta tells inductor of its old arguments
            coded = graph.call_function(GRADIENT_CODED, (*of.args, *of_codes))
        coded.meta["val"] = of.meta["val"]
        of.replace_all_uses_with(coded)
        graph.erase_node(of)


def _called(graph: Graph, given: tuple[Any, ...]) -> list[Node]:
    """The results of gate_gradient."""
    whole = graph.call_function(gate_gradient, given)
    values = [node.meta["val"] if isinstance(node, Node) else node for node in given]
    whole.meta["val"] = gate_gradient(*values)
    results = list[Node]()
    for at, value in enumerate(whole.meta["val"]):
        results.append(graph.call_function(getitem, (whole, at)))
        results[-1].meta["val"] = value
    return results


def _through_gate(gradient: Node) -> list[tuple[Node, Node]]:
    """(grad, gate) where the gradient that a layer gets is grad * silu(gate)."""
    product = _unviewed(cast(Node, gradient.args[0]))
    if product.target is not _aten.mul.Tensor:
        return []
    pairs = (product.args, product.args[::-1])
    sides = [(grad, silu_of(uncast(by))) for grad, by in pairs if isinstance(by, Node)]
    return [(cast(Node, grad), gate) for grad, gate in sides if gate is not None]


def _through_silu(gradient: Node, grad: Node, gate: Node) -> Node | None:
    """up where the gradient that a layer gets is grad * up * s * (1 + gate * (1 - s))."""
    product = uncast(_unviewed(cast(Node, gradient.args[0])))
    if product.target is not _aten.mul.Tensor:
        return None
    scaled, slope = (_side(product, at) for at in (0, 1))
    inner = only(slope, _aten.add.Tensor, 1)
    if inner is None or scaled is None or _aten.mul.Tensor not in {scaled.target, inner.target}:
        return None
    one_less = _other(inner, gate)
    if one_less is None or one_less.target is not _aten.sub.Tensor or one_less.args[0] != 1:
        return None
    sigmoid = cast(Node, one_less.args[1])
    source = _other(scaled, sigmoid)
    if source is None or not _is_sigmoid(sigmoid, gate):
        return None
    return _other(uncast(source), grad)


def _side(product: Node, at: int) -> Node | None:
    node = product.args[at]
    return node if isinstance(node, Node) else None


def _other(product: Node, one: Node) -> Node | None:
    """What is multiplied with `one`, whatever either was cast to."""
    if product.target is not _aten.mul.Tensor:
        return None
    for this, other in (product.args, product.args[::-1]):
        if isinstance(this, Node) and isinstance(other, Node) and uncast(this) is uncast(one):
            return uncast(other)
    return None


def _is_sigmoid(node: Node, gate: Node) -> bool:
    """sigmoid(gate), or, as torch writes it up to 2.12, 1 / (1 + exp(-gate))."""
    if node.target is _aten.mul.Tensor and node.args[1] == 1:
        node = cast(Node, node.args[0])
    if node.target is _aten.sigmoid.default:
        return uncast(cast(Node, node.args[0])) is uncast(gate)
    power = only(only(node, _aten.reciprocal.default), _aten.add.Tensor, 1)
    minus = only(only(power, _aten.exp.default), _aten.neg.default)
    return minus is not None and uncast(minus) is uncast(gate)


def _made_of(scale: Node) -> Any:
    """What a scale of x is the scale of: equal where scales are."""
    node = _unviewed(scale)
    if node.target is getitem:
        made = cast(Node, node.args[0])
        if made.target is QUANTIZE.run:
            return unaliased(cast(Node, made.args[0])), made.args[1:]
    return node


def _unviewed(node: Node) -> Node:
    while node.target in (*_VIEWS, *SAME):
        node = cast(Node, node.args[0])
    return node
