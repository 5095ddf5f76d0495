"""Runs an exported decoder in OpenVINO on a CPU, in float32, and reads its weights back."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.export.identity_product import identity_product

MODEL_NAME = "openvino_model.xml"


def exact(threads: int) -> dict[str, str]:
    """Options for float32 throughout.

    Left alone, OpenVINO multiplies in bfloat16 where the processor can, else rounds inputs to int8
    in groups of 32, and keeps the cache in 8 bits.
    """
    return {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": str(threads)}


class OpenvinoSession:
    """A compiled model with one state; it computes on as many threads as torch does.

    Args:
        openvino: the module `openvino`.
        out: the exported directory.
        options: of the compilation; `exact` by default.
    """

    def __init__(self, openvino: Any, out: Path, options: dict[str, str] | None = None) -> None:
        options = exact(torch.get_num_threads()) if options is None else options
        compiled = openvino.Core().compile_model(str(out / MODEL_NAME), "CPU", options)
        self._request = compiled.create_infer_request()
        self._length = 0

    def reset(self) -> None:
        """Empties the cache."""
        self._request.reset_state()
        self._length = 0

    def extend(
        self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Appends ids int64 [B, T] to the P positions in the cache; scores [B, T, V].

        Args:
            ids: int64.
            mask: int64 [B, P + T], 0 where there is padding; None for no padding.
            positions: int64 [B, T]; None for P, P + 1, ...
        """
        batch, new = ids.shape
        self._length += new
        if mask is None:
            mask = torch.ones(batch, self._length).long()
        if positions is None:
            positions = torch.arange(self._length - new, self._length).repeat(batch, 1)
        feeds = {
            "input_ids": ids.numpy(),
            "attention_mask": mask.numpy(),
            "position_ids": positions.numpy(),
            "beam_idx": torch.arange(batch).int().numpy(),
        }
        # a view of the request's own memory, which the next step overwrites
        return torch.from_numpy(self._request.infer(feeds)["logits"]).clone()

    def logits(self, tokens: list[int]) -> Tensor:
        """Scores [T, V] after each token."""
        self.reset()
        return self.extend(torch.tensor([tokens]))[0]

    def stream(self, tokens: list[int], count: int) -> Iterator[int]:
        """The next `count` tokens, always the most likely, as they come."""
        self.reset()
        given = tokens
        for _ in range(count):
            given = [int(self.extend(torch.tensor([given]))[0, -1].argmax())]
            yield given[0]


def read_back(openvino: Any, out: Path) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every packed module.

    Each multiplies the identity matrix in OpenVINO's own kernel.
    """
    core = openvino.Core()
    ops = openvino.opset13
    for node in core.read_model(str(out / MODEL_NAME)).get_ops():
        name = node.get_friendly_name()
        if node.get_type_name() != "Reshape" or not name.endswith(".weight"):
            continue
        rows, columns = node.get_output_shape(0)
        x = ops.parameter([-1, columns], openvino.Type.f32)
        single = openvino.Model([ops.matmul(x, node, False, True)], [x], "single")
        compiled = core.compile_model(single, "CPU", exact(torch.get_num_threads()))
        product = partial(_run, compiled)
        weight = identity_product(rows, columns, product)
        yield name.removesuffix(".weight"), weight


def _run(compiled: Any, x: Tensor) -> Tensor:
    return torch.from_numpy(compiled(x.numpy())[0])
