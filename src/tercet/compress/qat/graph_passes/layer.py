"""LayerPass: what Tercet changes in the graph of a compiled layer, forward and backward in one."""

from dataclasses import dataclass
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph

from tercet.compress.qat.graph_passes import fuse, recompute
from tercet.ops.linear_qat.op import OP, TRACED


@dataclass(frozen=True, kw_only=True)
class LayerPass(CustomGraphPass):
    """Fuses codes with what they are made of, and chooses which are made again.

    Those of equal options are equal, so that layers of any student that agree otherwise share one
    graph.

    Args:
        keep_inputs: all codes are kept for the backward pass, none are made again.
    """

    keep_inputs: bool = False

    def __call__(self, graph: Graph) -> None:
        """Inductor's `joint_custom_pre_pass`."""
        fuse.fuse(graph)
        if not self.keep_inputs:
            recompute.recompute(graph)
        for node in graph.find_nodes(op="call_function", target=OP.run):
            node.target = TRACED

    def uuid(self) -> Any:
        """Names the files' text to the cache of compiled graphs."""
        files = (__file__, fuse.__file__, recompute.__file__)
        return get_hash_for_files(files, extra=str(self.keep_inputs))
