"""Tail: what a change of one module does to the model's output, from its layer on.

Hidden states before each layer are kept, so layers before the changed one are not run again.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tercet.compress.algorithm import Quantized
from tercet.compress.allocate.candidates import as_put
from tercet.compress.allocate.divergence import log_probabilities, summed_kl
from tercet.compress.calibration.module_hooks import transforming
from tercet.compress.calibration.stream import Stream, batch_size, logits_after
from tercet.compress.skeleton import Skeleton
from tercet.compress.units import Units
from tercet.models.input_transform import InputTransform


class Reference:
    """The uncompressed model's distributions on some windows; the model is filled.

    Args:
        skeleton: a language model.
        windows: token ids [windows, length].
    """

    def __init__(self, skeleton: Skeleton, windows: Tensor) -> None:
        self.windows = windows
        size = batch_size(windows.shape[1], skeleton.device)
        self.ids = list(torch.split(windows, size))
        stream = Stream.start(skeleton, windows)
        hidden = list(torch.split(stream.hidden, size))
        for index, layer in enumerate(skeleton.layers):
            hidden = [stream.pass_exactly(layer, index, part) for part in hidden]
        self.log_p = [
            log_probabilities(logits_after(skeleton, ids, part))
            for ids, part in zip(self.ids, hidden, strict=True)
        ]


class Tail:
    """Measures KL divergence with one module changed, in the model as it is now.

    Args:
        skeleton: the model, filled, with the context's weights if there is one.
        reference: what the uncompressed model gives.
        transforms: of the inputs of the context's modules, by name.
    """

    def __init__(
        self, skeleton: Skeleton, reference: Reference, transforms: Mapping[str, InputTransform]
    ) -> None:
        self.skeleton, self.reference, self.transforms = skeleton, reference, transforms
        units = Units.of(skeleton)
        self._layer_of = {
            parameter: index - 1
            for index, parameters in enumerate(units.parameters)
            for parameter in parameters
        }
        self._stream = Stream.start(skeleton, reference.windows)
        for module in self._stream.early:
            for part in ("weight", "bias"):
                self._layer_of[f"{module}.{part}"] = -1
        size = batch_size(reference.windows.shape[1], skeleton.device)
        hidden = list(torch.split(self._stream.hidden, size))
        self._before = [hidden]
        with self._transforming(transforms):
            for index, layer in enumerate(skeleton.layers):
                hidden = [self._stream.pass_exactly(layer, index, part) for part in hidden]
                self._before.append(hidden)

    def context_kl(self) -> float:
        """KL divergence with nothing changed, nats per token."""
        return self._kl(len(self.skeleton.layers), self.transforms)

    def kl(self, name: str, result: Quantized) -> float:
        """KL divergence with that module as quantized and all others as they are."""
        parameter = f"{name}.weight"
        old = self.skeleton.model.get_parameter(parameter).detach()
        weight, transform = as_put(result, self.skeleton.device)
        transforms = {key: value for key, value in self.transforms.items() if key != name}
        if not transform.identity:
            transforms[name] = transform
        self.skeleton.put(parameter, weight)
        try:
            return self._kl(self._layer_of[parameter], transforms)
        finally:
            self.skeleton.put(parameter, old)

    def _kl(self, first: int, transforms: Mapping[str, InputTransform]) -> float:
        """From layer `first` on; -1 is what lies before the layers."""
        total = 0.0
        whole: list[Tensor] = []
        if first < 0:
            started = Stream.start(self.skeleton, self.reference.windows).hidden
            whole = list(torch.split(started, len(self.reference.ids[0])))
        with self._transforming(transforms):
            for batch, ids in enumerate(self.reference.ids):
                hidden = whole[batch] if first < 0 else self._before[first][batch]
                for index in range(max(first, 0), len(self.skeleton.layers)):
                    layer = self.skeleton.layers[index]
                    hidden = self._stream.pass_exactly(layer, index, hidden)
                logits = logits_after(self.skeleton, ids, hidden)
                total += summed_kl(self.reference.log_p[batch], logits)
        return total / self.reference.windows.numel()

    def _transforming(self, transforms: Mapping[str, InputTransform]):
        targets = {name: self.skeleton.module(name) for name in transforms}
        return transforming(targets, transforms)
