"""Writes an ONNX graph node by node, and its weights into one file beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from tercet.version import VERSION

GRAPH_NAME, DATA_NAME = "model.onnx", "model.onnx.data"
CONTRIB = "com.microsoft"
# RMSNormalization, RotaryEmbedding and Attention are standard operators from opset 23 on
_OPSET, _IR_VERSION = 23, 11
# a page, so that the weights can be mapped into memory as they lie
_ALIGNMENT = 4096

Shape = Sequence[str | int]


class Graph:
    """An ONNX model that grows; `save` writes it.

    Args:
        onnx: the module `onnx`.
        data: the open file of the weights, DATA_NAME in the model's directory.
    """

    def __init__(self, onnx: Any, data: BinaryIO) -> None:
        self._onnx = onnx
        self._data = data
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._casts: dict[str, str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        types = onnx.TensorProto
        self.types: dict[torch.dtype, int] = {
            torch.float32: types.FLOAT,
            torch.float16: types.FLOAT16,
            torch.bfloat16: types.BFLOAT16,
            torch.uint8: types.UINT8,
            torch.int64: types.INT64,
            torch.bool: types.BOOL,
        }

    def op(self, kind: str, *inputs: str, made: Sequence[str] = (), **options: Any) -> str:
        """Adds a node; the name of its first output.

        Args:
            kind: the operator; one of com.microsoft has an option domain=CONTRIB.
            inputs: names; "" leaves an optional one out.
            made: the names of its outputs; one made-up name where empty.
            options: its attributes, and its name.
        """
        name = options.pop("name", f"{kind}_{len(self._nodes)}")
        made = made or (f"{name}.out",)
        node = self._onnx.helper.make_node(kind, list(inputs), list(made), name=name, **options)
        self._nodes.append(node)
        return made[0]

    def numbers(self, *values: int) -> str:
        """A constant vector of whole numbers, inside the graph's file."""
        return self._constant([len(values)], list(values))

    def number(self, value: int) -> str:
        """A constant whole number, inside the graph's file."""
        return self._constant([], [value])

    def _constant(self, dims: list[int], values: list[int]) -> str:
        name = f"numbers_{'x'.join(map(str, dims))}_{'_'.join(map(str, values))}"
        if name not in self._initializers:
            self._initializers[name] = self._onnx.helper.make_tensor(
                name, self.types[torch.int64], dims, values
            )
        return name

    def weight(self, name: str, tensor: Tensor) -> str:
        """A tensor in the data file, in its own dtype."""
        self._data.write(bytes(-self._data.tell() % _ALIGNMENT))
        offset = self._data.tell()
        self._data.write(tensor.contiguous().view(torch.uint8).numpy().data)
        self._place(name, tensor, list(tensor.shape), offset, tensor.nbytes)
        return name

    def same_bytes(self, name: str, of: str, shape: tuple[int, ...]) -> str:
        """Another shape of a tensor that is in the data file already."""
        first = self._initializers[of]
        place = {entry.key: entry.value for entry in first.external_data}
        at, length = int(place["offset"]), int(place["length"])
        self._place(name, first.data_type, list(shape), at, length)
        return name

    def _place(self, name: str, kind: Tensor | int, dims: list[int], at: int, length: int) -> None:
        data_type = kind if isinstance(kind, int) else self.types[kind.dtype]
        tensor = self._onnx.TensorProto(name=name, data_type=data_type, dims=dims)
        tensor.data_location = self._onnx.TensorProto.EXTERNAL
        for key, value in (("location", DATA_NAME), ("offset", at), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor

    def float32(self, name: str) -> str:
        """A weight in float32: exact, and folded into a constant when the model is loaded."""
        if self._initializers[name].data_type == self.types[torch.float32]:
            return name
        if name not in self._casts:
            self._casts[name] = self.cast(name, torch.float32)
        return self._casts[name]

    def cast(self, name: str, dtype: torch.dtype) -> str:
        """Another dtype."""
        return self.op("Cast", name, to=self.types[dtype])

    def input(self, name: str, dtype: torch.dtype, shape: Shape) -> str:
        """An input of the model; names in its shape are dynamic."""
        info = self._onnx.helper.make_tensor_value_info(name, self.types[dtype], list(shape))
        self._inputs.append(info)
        return name

    def output(self, name: str, shape: Shape) -> None:
        """Makes a value an output of the model, float32."""
        kind = self.types[torch.float32]
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))

    def save(self, path: Path) -> None:
        """Writes the graph's file."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, list(self._initializers.values())
        )
        domains = [helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(
            graph,
            opset_imports=domains,
            ir_version=_IR_VERSION,
            producer_name="tercet",
            producer_version=VERSION,
        )
        path.write_bytes(model.SerializeToString())
