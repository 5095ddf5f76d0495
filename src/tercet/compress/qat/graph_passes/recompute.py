"""Recompute: codes of inputs that a compiled backward pass makes again, instead of keeping them.

torch.compile keeps what an operation of ours returns, and recomputes only its own. Codes of a
norm's or the attention's output take 30 us to make again of what is kept anyway (8192 tokens of
4096 on an H200), and are a tenth of what a layer keeps. The widest inputs, the gate's products, are
kept: they would have to be multiplied again, too.
"""

from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy

from tercet.compress.qat.graph_passes.fuse import MAKE_CODES


def recompute(graph: Graph) -> None:
    """Marks those in a graph of both passes, before it is cut in two."""
    widths = {
        node: node.meta["val"][0].shape[-1]
        for target in MAKE_CODES
        for node in graph.find_nodes(op="call_function", target=target)
    }
    for node, width in widths.items():
        if width < max(widths.values()):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
