"""tune: trains what a layer stores, until its output is the uncompressed layer's.

With x the compressed model's hidden states before the layer, t the uncompressed model's behind it,
and f(x; W, n) the layer with decoded weights W and norms n, the loss of a batch is

    mean over tokens of |f(x; W, n) - t|^2 / |t|^2

so the layer also makes up for what the layers before it have lost, and a token whose hidden state
is a thousand times larger than the others', as a first one's is, does not drown those. Weights are
trained as in `LatentWeight`, by Adam, a layer after the other as in BRECQ (arXiv:2102.05426) and
Block-AP of EfficientQAT (arXiv:2407.11062); rates fall along a cosine, so that levels come to rest.
After each epoch the loss over sequences that are not trained on says which epoch is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from tercet.compress.blockwise.latent_vector import LatentVector
from tercet.compress.blockwise.latent_weight import LatentWeight
from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.blockwise.step_graph import StepGraph

Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""The layer's output [batch, length, width] under parameters by name, for hidden states."""

Latents = Mapping[str, LatentWeight | LatentVector]
"""What is trained, by the names of the layer's parameters."""


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Hidden states [sequences, length, width].

    Attributes:
        inputs: the compressed model's before the layer.
        targets: the uncompressed model's behind it.
    """

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The loss over the sequences that are not trained on.

    Attributes:
        before: without any training.
        after: of what is kept.
    """

    before: float
    after: float


def tune(
    forward: Forward, latents: Latents, hidden: Hidden, settings: Blockwise, seed: int
) -> Errors:
    """Trains the latents, which then hold those of the best epoch.

    Args:
        forward: the layer.
        latents: what is trained.
        hidden: of all sequences.
        settings: see there.
        seed: of the order of the sequences.
    """
    held, rest = split_sequences(len(hidden.inputs), settings.held_out)
    training = _Training(forward, latents, hidden, settings)
    # not an attribute of what it calls: in a cycle, a layer's graph would outlive the layer, until
    # the garbage collector frees it, perhaps while the next one is captured, which CUDA forbids
    step = StepGraph(training.learn, settings.batch, hidden.inputs.device)
    best = before = training.measure(held)
    kept = training.copy()
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(settings.epochs):
        training.pass_over(rest[torch.randperm(len(rest), generator=generator)], epoch, step)
        found = training.measure(held)
        if found < best:
            best, kept = found, training.copy()
    training.restore(kept)
    return Errors(before=before, after=best)


class _Training:
    """The layer, its latents and their optimizer."""

    def __init__(
        self, forward: Forward, latents: Latents, hidden: Hidden, settings: Blockwise
    ) -> None:
        self._forward, self._latents, self._hidden = forward, latents, hidden
        self._settings = settings
        levels = [one.latent for one in latents.values() if isinstance(one, LatentWeight)]
        relative = [leaf for one in latents.values() for leaf in one.relative()]
        self._leaves = levels + relative
        device = hidden.inputs.device
        on_gpu = device.type == "cuda"
        groups: list[dict[str, Any]] = [{"params": levels}, {"params": relative}]
        for group in groups if on_gpu else ():
            # a captured step reads its rate from the device's memory
            group["lr"] = torch.zeros((), device=device)
        self._optimizer = torch.optim.Adam(
            groups, betas=_BETAS, capturable=on_gpu, fused=on_gpu or None
        )

    def pass_over(self, sequences: Tensor, epoch: int, step: Callable[[Tensor], None]) -> None:
        """One epoch over these sequences, in this order; `step` runs `learn`."""
        batches = self._batches(sequences)
        for index, batch in enumerate(batches):
            self._set_rates((epoch + index / len(batches)) / self._settings.epochs)
            step(batch)

    def _set_rates(self, done: float) -> None:
        share = (1 + cos(pi * done)) / 2
        rates = (self._settings.learning_rate, self._settings.scale_learning_rate)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share

    def learn(self, batch: Tensor) -> None:
        """A step for the sequences of these places, at the rates that are set."""
        self._optimizer.zero_grad()
        with torch.enable_grad():
            self._error(batch).backward()
        self._optimizer.step()

    @torch.no_grad()
    def measure(self, sequences: Tensor) -> float:
        """The loss over these sequences."""
        values = {name: one.values() for name, one in self._latents.items()}
        total = torch.zeros((), device=self._hidden.inputs.device)
        for batch in self._batches(sequences):
            total += self._error(batch, values) * len(batch)
        return float(total) / len(sequences)

    def copy(self) -> list[Tensor]:
        """The latents as they are."""
        return [leaf.detach().clone() for leaf in self._leaves]

    @torch.no_grad()
    def restore(self, kept: list[Tensor]) -> None:
        """The latents as they were."""
        for leaf, value in zip(self._leaves, kept, strict=True):
            leaf.copy_(value)

    def _batches(self, sequences: Tensor) -> tuple[Tensor, ...]:
        # once a pass, not once a step, the host waits for the device
        return torch.split(sequences.to(self._hidden.inputs.device), self._settings.batch)

    def _error(self, batch: Tensor, values: Mapping[str, Tensor] | None = None) -> Tensor:
        values = values or {name: one.values() for name, one in self._latents.items()}
        made = self._forward(values, self._hidden.inputs[batch])
        return relative_error(made, self._hidden.targets[batch])


_BETAS = (0.9, 0.95)


def relative_error(made: Tensor, target: Tensor) -> Tensor:
    """mean over tokens of |y - t|^2 / |t|^2, for y and t [.., width]."""
    size = target.square().sum(-1).clamp_min(torch.finfo(target.dtype).tiny)
    return ((made - target).square().sum(-1) / size).mean()


def split_sequences(count: int, share: float) -> tuple[Tensor, Tensor]:
    """Which of `count` sequences, at least 2, are held out, evenly spaced; which are trained on."""
    held = torch.arange(min(max(round(count * share), 1), count - 1))
    held = held * count // len(held)
    rest = torch.ones(count, dtype=torch.bool)
    rest[held] = False
    return held, rest.nonzero()[:, 0]
