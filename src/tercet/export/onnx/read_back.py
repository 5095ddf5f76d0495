"""Reads packed weights back through ONNX Runtime's own kernels.

A linear multiplies the identity matrix, an embedding is asked for all of its rows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.export.identity_product import identity_product
from tercet.export.onnx.graph import GRAPH_NAME


def read_back(out: Path, onnx: Any, runtime: Any) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every packed module of an exported directory."""
    model = onnx.load(str(out / GRAPH_NAME), load_external_data=False)
    rows = {entry.name: [*entry.dims, 0][0] for entry in model.graph.initializer}
    shared: set[str] = set()
    for node in model.graph.node:
        attributes = {entry.name: entry.i for entry in node.attribute}
        if node.op_type == "GatherBlockQuantized":
            hidden = json.loads((out / "config.json").read_text())["hidden_size"]
            session = _Single(onnx, runtime, model, node, 1, out)
            yield node.name, session.rows(rows[node.input[0]])[:, :hidden]
            # a head that is tied to this embedding has the same bytes
            shared.add(node.input[2])
        elif node.op_type == "MatMulNBits" and node.input[2] not in shared:
            session = _Single(onnx, runtime, model, node, 0, out)
            yield node.name, session.product(attributes["N"], attributes["K"])


class _Single:
    """One node of a model as a model of its own; input number `free` is left to be x."""

    def __init__(
        self, onnx: Any, runtime: Any, model: Any, node: Any, free: int, out: Path
    ) -> None:
        weights = {name for index, name in enumerate(node.input) if index != free}
        before = [made for made in model.graph.node if weights & set(made.output)]
        names = weights | {name for made in before for name in made.input}
        single = onnx.NodeProto()
        single.CopyFrom(node)
        for attribute in single.attribute:
            # rounded to int8, even the ones of an identity matrix come out a little off
            attribute.i = 0 if attribute.name == "accuracy_level" else attribute.i
        helper, types = onnx.helper, onnx.TensorProto
        kind = (types.INT64, [None]) if free else (types.FLOAT, [None, None])
        graph = helper.make_graph(
            [*before, single],
            "single",
            [helper.make_tensor_value_info(node.input[free], *kind)],
            [helper.make_tensor_value_info(node.output[0], types.FLOAT, [None, None])],
            [held for held in model.graph.initializer if held.name in names],
        )
        alone = helper.make_model(
            graph, opset_imports=model.opset_import, ir_version=model.ir_version
        )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(out)
        )
        self._session = runtime.InferenceSession(
            alone.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._input = node.input[free]

    def rows(self, count: int) -> Tensor:
        """All rows of an embedding."""
        return self._run(torch.arange(count))

    def product(self, rows: int, columns: int) -> Tensor:
        """W [N, K] of a linear."""
        return identity_product(rows, columns, self._run)

    def _run(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self._session.run(None, {self._input: x.numpy()})[0])
