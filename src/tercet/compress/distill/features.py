"""Features: what a loss wants to see inside a model, kept by hooks while it runs."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn

from tercet.compress.distill.attention_relation import PARTS
from tercet.compress.qat.student import Student
from tercet.errors import PlanError, UnsupportedError


class Features:
    """Outputs of a model's layers, and of one layer's projections, of its last forward pass.

    Args:
        model: the student or the teacher.
        hidden: whether hidden states are wanted.
        layer: the layer whose queries, keys and values are wanted; None for none.

    Raises:
        PlanError: there is no such layer.
        UnsupportedError: its projections are not q_proj, k_proj and v_proj.
    """

    def __init__(self, model: Student, hidden: bool, layer: int | None) -> None:
        self._kept: dict[str, Tensor] = {}
        layers = model.layers()
        self._count = len(layers) if hidden else 0
        for index, module in enumerate(layers if hidden else []):
            self._keep(module, f"layer {index}")
        if layer is not None:
            if not -len(layers) <= layer < len(layers):
                raise PlanError(f"attention_layer {layer}: the model has {len(layers)} layers")
            self._keep_projections(layers[layer])

    def _keep_projections(self, layer: nn.Module) -> None:
        named = dict(cast("Iterable[tuple[str, nn.Module]]", layer.named_modules()))
        for part in PARTS:
            found = [m for name, m in named.items() if name.rpartition(".")[2] == part]
            if len(found) != 1:
                raise UnsupportedError(
                    f"{type(layer).__name__} has {len(found)} modules {part}: attention relations "
                    f"need one each of {', '.join(PARTS)}"
                )
            self._keep(found[0], part)

    def _keep(self, module: nn.Module, name: str) -> None:
        def hook(_module: nn.Module, _arguments: Any, output: Any) -> None:
            self._kept[name] = output[0] if isinstance(output, tuple) else output

        module.register_forward_hook(hook)

    def hidden_states(self) -> Sequence[Tensor]:
        """[B, T, H] of each layer."""
        return [self._kept[f"layer {index}"] for index in range(self._count)]

    def projections(self) -> dict[str, Tensor]:
        """[B, T, width] by part."""
        return {part: self._kept[part] for part in PARTS}

    def forget(self) -> None:
        """Lets go of the tensors."""
        self._kept.clear()
