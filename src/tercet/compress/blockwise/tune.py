"""tune: trains what is stored of quantized weights for a loss over calibration sequences.

Weights are trained as in `LatentWeight`, by Adam; rates fall along a cosine, so that levels come to
rest. The loss over sequences that are not trained on, measured once an epoch or more often, says
what is kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import cos, pi
from typing import Any, Protocol

import torch
from torch import Tensor

from tercet.compress.blockwise.latent_vector import LatentVector
from tercet.compress.blockwise.latent_weight import LatentWeight
from tercet.compress.blockwise.settings import Tuning
from tercet.compress.blockwise.step_graph import StepGraph

Loss = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""The loss [] of the sequences of indices [batch], int64 on the device, under values by name."""

Latents = Mapping[str, LatentWeight | LatentVector]
"""What is trained, by name."""


class KeptState(Protocol):
    """Where a training keeps what it can go on from."""

    def load(self) -> dict[str, Any] | None:
        """What was saved last, tensors on the device; None where nothing was."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Saves, in the place of what was saved before."""
        ...


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
    loss: Loss,
    latents: Latents,
    sequences: int,
    settings: Tuning,
    *,
    seed: int,
    device: torch.device,
    rates: Mapping[str, float] | None = None,
    passed: Callable[[int, float], None] = lambda _, __: None,
    kept_state: KeptState | None = None,
) -> Errors:
    """Trains the latents, which then hold those of the best measurement.

    Args:
        loss: what is to become small.
        latents: what is trained.
        sequences: how many there are, at least 2.
        settings: see there.
        seed: of the order of the sequences.
        device: where the latents are.
        rates: learning rates of the levels of some weights, by name, in the place of the settings'.
        passed: called after each measurement, with how many are over and the loss of held-out
            sequences.
        kept_state: keeps what an interrupted training goes on from, after each measurement; it then
            gives what it would have given in one piece.
    """
    held, rest = split_sequences(sequences, settings.held_out)
    training = _Training(loss, latents, settings, device, rates or {})
    # not an attribute of what it calls: in a cycle, a graph would outlive what it computes, until
    # the garbage collector frees it, perhaps while the next one is captured, which CUDA forbids
    step = StepGraph(training.learn, settings.batch, device)
    state = kept_state.load() if kept_state is not None else None
    done = 0 if state is None else training.take(state)
    if state is None:
        before = training.measure(held)
        best, kept = before, training.copy()
    else:
        before, best, kept = state["before"], state["best"], state["kept"]
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(settings.epochs):
        order = rest[torch.randperm(len(rest), generator=generator)]
        for part, batches in enumerate(training.parts(order)):
            measured = epoch * settings.measurements + part
            if measured < done:
                continue
            training.pass_over(batches, measured, step)
            found = training.measure(held)
            if found < best:
                best, kept = found, training.copy()
            if kept_state is not None:
                so_far = {"before": before, "best": best, "kept": kept}
                kept_state.save({**training.give(measured + 1), **so_far})
            passed(measured + 1, found)
    training.restore(kept)
    return Errors(before=before, after=best)


class _Training:
    """Latents, what they are trained for, and their optimizer."""

    def __init__(
        self,
        loss: Loss,
        latents: Latents,
        settings: Tuning,
        device: torch.device,
        rates: Mapping[str, float],
    ) -> None:
        self._loss, self._latents = loss, latents
        self._settings, self._device = settings, device
        levels = {
            name: one.latent
            for name, one in latents.items()
            if isinstance(one, LatentWeight) and one.latent.requires_grad
        }
        relative = [leaf for one in latents.values() for leaf in one.relative()]
        self._leaves = [*levels.values(), *relative]
        on_gpu = device.type == "cuda"
        groups: list[dict[str, Any]] = [
            {
                "params": [leaf for name, leaf in levels.items() if name not in rates],
                "base": settings.learning_rate,
            },
            {"params": relative, "base": settings.scale_learning_rate},
        ]
        groups += [
            {"params": [levels[name]], "base": rates[name]} for name in levels if name in rates
        ]
        for group in groups if on_gpu else ():
            # a captured step reads its rate from the device's memory
            group["lr"] = torch.zeros((), dtype=torch.float32, device=device)
        self._optimizer = torch.optim.Adam(
            groups, betas=_BETAS, capturable=on_gpu, fused=on_gpu or None
        )

    def parts(self, sequences: Tensor) -> list[tuple[Tensor, ...]]:
        """Batches of an epoch in this order, those before each measurement together."""
        batches, count = self._batches(sequences), self._settings.measurements
        ends = [len(batches) * part // count for part in range(count + 1)]
        return [batches[first:last] for first, last in pairwise(ends)]

    def pass_over(
        self, batches: tuple[Tensor, ...], measured: int, step: Callable[[Tensor], None]
    ) -> None:
        """Trains on what comes after so many measurements; `step` runs `learn`."""
        for index, batch in enumerate(batches):
            done = measured + index / len(batches)
            self._set_rates(done / self._settings.all_measurements)
            step(batch)

    def _set_rates(self, done: float) -> None:
        share = (1 + cos(pi * done)) / 2
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["base"] * share)
            else:
                group["lr"] = group["base"] * share

    def learn(self, batch: Tensor) -> None:
        """A step for the sequences of these places, at the rates that are set."""
        self._optimizer.zero_grad()
        with torch.enable_grad():
            self._loss(self._values(), batch).backward()
        self._optimizer.step()

    @torch.no_grad()
    def measure(self, sequences: Tensor) -> float:
        """The loss over these sequences."""
        values = self._values()
        total = torch.zeros((), dtype=torch.float32, device=self._device)
        for batch in self._batches(sequences):
            total += self._loss(values, batch) * len(batch)
        return float(total) / len(sequences)

    def copy(self) -> list[Tensor]:
        """The latents as they are."""
        return [leaf.detach().clone() for leaf in self._leaves]

    @torch.no_grad()
    def restore(self, kept: list[Tensor]) -> None:
        """The latents as they were."""
        for leaf, value in zip(self._leaves, kept, strict=True):
            leaf.copy_(value)

    def give(self, measured: int) -> dict[str, Any]:
        """All that goes on from here, after so many measurements."""
        return {
            "measured": measured,
            "leaves": [leaf.detach() for leaf in self._leaves],
            "optimizer": self._optimizer.state_dict(),
        }

    def take(self, state: Mapping[str, Any]) -> int:
        """Goes on from what was given; how many measurements are over."""
        self.restore(state["leaves"])
        self._optimizer.load_state_dict(state["optimizer"])
        return state["measured"]

    def _batches(self, sequences: Tensor) -> tuple[Tensor, ...]:
        # once a pass, not once a step, the host waits for the device
        return torch.split(sequences.to(self._device), self._settings.batch)

    def _values(self) -> dict[str, Tensor]:
        return {name: one.values() for name, one in self._latents.items()}


_BETAS = (0.9, 0.95)
# more of them say no better which measurement is the best
_MOST_HELD_OUT = 512


def split_sequences(count: int, share: float) -> tuple[Tensor, Tensor]:
    """Which of `count` sequences, at least 2, are held out, evenly spaced; which are trained on."""
    held = torch.arange(min(max(round(count * share), 1), count - 1, _MOST_HELD_OUT))
    held = held * count // len(held)
    rest = torch.ones(count, dtype=torch.bool)
    rest[held] = False
    return held, rest.nonzero()[:, 0]
