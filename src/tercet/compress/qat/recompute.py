"""Recompute: codes of inputs that a compiled backward pass makes again, instead of keeping them.

torch.compile keeps what an operation of ours returns, and recomputes only its own. Codes of a
norm's or the attention's output take 30 us to make again of what is kept anyway (8192 tokens of
4096 on an H200), and are a tenth of what a layer keeps. The widest inputs, the gate's products, are
kept: they would have to be multiplied again, too.
"""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy


class RecomputedCodes(CustomGraphPass):
    """Marks those quantizations in a graph of both passes, before it is cut in two.

    All are equal, so that layers of any student that agree otherwise share one graph.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecomputedCodes)

    def __hash__(self) -> int:
        return hash(RecomputedCodes)

    def __call__(self, graph: Graph) -> None:
        """Inductor's `joint_custom_pre_pass`."""
        quantize = torch.ops.tercet.quantize_activation.default
        widths = {
            node: node.args[0].meta["val"].shape[-1]
            for node in graph.find_nodes(op="call_function", target=quantize)
        }
        for node, width in widths.items():
            if width < max(widths.values()):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE

    def uuid(self) -> Any:
        """Names this file's text to the cache of compiled graphs."""
        return get_hash_for_files((__file__,))
