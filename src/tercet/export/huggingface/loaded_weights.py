"""The weights of a model that transformers has loaded, as a decoder takes them, without copies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tercet.checkpoints.packed.layout import PackedModule
from tercet.export.huggingface.packed_buffers import PackedBuffers
from tercet.formats import PackedTensor
from tercet.packed_weight import PreparedWeight, select_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LoadedWeights:
    """A source of weights, see `tercet.models.WeightSource`: those of the model as it is now.

    Attributes:
        modules: the packed ones by name.

    Args:
        model: whose modules are read when asked for.
    """

    def __init__(self, model: "PreTrainedModel") -> None:
        modules = dict(cast("Iterator[tuple[str, nn.Module]]", model.named_modules()))
        found = {name: one for name, one in modules.items() if isinstance(one, PackedBuffers)}
        self.packed = found
        self.modules: Mapping[str, PackedModule] = {name: one.entry for name, one in found.items()}
        self._config = model.config.to_dict()
        # a model's own names, each tied parameter once
        self._plain = {name: one.detach() for name, one in model.named_parameters()}

    @property
    def config(self) -> dict[str, Any]:
        """As config.json would have it."""
        return self._config

    def names(self) -> Iterable[str]:
        """Parameters that belong to no packed weight."""
        return self._plain

    def tensor(self, name: str) -> Tensor:
        """One of those parameters, where it lies."""
        return self._plain[name]

    def read_packed(self, module: str) -> PackedTensor:
        """The weight of a packed module in storage form."""
        return self.packed[module].to_packed()

    def prepared(self, module: str, device: torch.device) -> PreparedWeight:
        """The weight of a packed module in its compute layout, as the module itself uses it."""
        return self.packed[module].weight_for(device)

    def input_scale(self, module: str) -> Tensor:
        """The vector [K] that multiplies a packed module's input."""
        return self.packed[module].get_buffer("input_scale")

    def take_fused(self, modules: Sequence[str], weight: PreparedWeight) -> None:
        """Has the modules use their rows of the weight, so that they are in memory once."""
        begin = 0
        for name in modules:
            rows = self.packed[name].entry.shape[0]
            self.packed[name].use(select_rows(weight, begin, rows))
            begin += rows
