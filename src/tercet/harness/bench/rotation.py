"""Rotation: copies of a workload's inputs with different contents; timed calls cycle through them.

Together they exceed the last-level cache several times, so that every call finds its inputs cold.
Each copy has contents of its own, so a result that was kept from an earlier call is wrong.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.sandbox.bits import same_bits
from tercet.harness.timing.memory import tensor_bytes
from tercet.harness.workloads.gradients import describe_outputs
from tercet.kernel.contract import Op, Workload

CACHE_MULTIPLE = 3
_MOST = 4096
_SEEDS_APART = 1000


@dataclass(kw_only=True)
class Copy:
    """One set of inputs at fixed addresses.

    Attributes:
        seed: what the arguments' contents were drawn from.
        prepared: the prepared arguments.
        grad_seed: what the incoming gradients were drawn from.
        grad_outputs: the incoming gradient of each output; None where an output has none.
    """

    seed: int
    prepared: dict[str, Any]
    grad_seed: int
    grad_outputs: list[Tensor | None]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return tensor_bytes((*self.prepared.values(), *self.grad_outputs))


class Rotation:
    """The copies of one workload.

    Args:
        op, workload: of which op and call.
        seed: of the first copy.
        device: where.
        gradient: whether incoming gradients are needed.
    """

    def __init__(self, op: Op, workload: Workload, seed: int, device: str, gradient: bool) -> None:
        self._op, self._workload, self._device = op, workload, device
        self._next = seed
        prepared = op.prepare(self.arguments(seed))
        self._shapes = self._incoming(prepared) if gradient else []
        self.copies = list[Copy]()
        self.grow(1)

    def arguments(self, seed: int) -> dict[str, Any]:
        """The reference's arguments of a seed, drawn anew."""
        if self._op.inputs is None:
            raise UnsupportedError(
                f"op {self._op.name!r} draws no inputs for a workload: give its Op `inputs`"
            )
        return self._op.inputs(self._workload, seed, self._device)

    def grow(self, count: int) -> None:
        """Draws copies until there are `count`."""
        while len(self.copies) < count:
            seed = self._fresh_seed()
            self.copies.append(
                Copy(
                    seed=seed,
                    prepared=self._op.prepare(self.arguments(seed)),
                    grad_seed=seed,
                    grad_outputs=self.draw_grad_outputs(seed),
                )
            )

    def remake(self, copy: Copy, prepare: Callable[[dict[str, Any]], dict[str, Any]]) -> Copy:
        """The copy's contents, prepared in another way, at addresses of their own."""
        return replace(copy, prepared=prepare(self.arguments(copy.seed)))

    def draw_grad_outputs(self, seed: int) -> list[Tensor | None]:
        """Random incoming gradients of a seed."""
        drawn = list[Tensor | None]()
        for at, like in enumerate(self._shapes):
            if like is None:
                drawn.append(None)
                continue
            shape, dtype = like
            generator = torch.Generator(self._device).manual_seed(seed + 500 + at)
            grad_output = torch.randn(shape, generator=generator, device=self._device)
            drawn.append(grad_output.to(dtype))
        return drawn

    def refresh(self, copy: Copy) -> None:
        """New contents at the same addresses."""
        copy.seed = self._fresh_seed()
        for name, value in self._op.prepare(self.arguments(copy.seed)).items():
            if isinstance(value, Tensor):
                copy.prepared[name].copy_(value)

    def restore(self, copy: Copy) -> None:
        """What was drawn, after something wrote over it."""
        fresh = self._op.prepare(self.arguments(copy.seed))
        pairs = [(copy.prepared[name], value) for name, value in fresh.items()]
        pairs += zip(copy.grad_outputs, self.draw_grad_outputs(copy.grad_seed), strict=True)
        for old, new in pairs:
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                # .data: a restored tensor is the one that autograd saved, not a new version of it
                old.data.copy_(new)

    def refresh_grad_outputs(self, copy: Copy) -> None:
        """New incoming gradients at the same addresses; the arguments stay."""
        copy.grad_seed = self._fresh_seed()
        for old, new in zip(copy.grad_outputs, self.draw_grad_outputs(copy.grad_seed), strict=True):
            if old is not None and new is not None:
                old.copy_(new)

    def changed(self, copy: Copy) -> tuple[str, ...]:
        """Names of inputs that no longer hold what was drawn."""
        fresh = self._op.prepare(self.arguments(copy.seed))
        names = [
            name
            for name, value in fresh.items()
            if isinstance(value, Tensor) and not same_bits(value, copy.prepared[name])
        ]
        names += [
            f"the incoming gradient of output {at}"
            for at, (old, new) in enumerate(
                zip(copy.grad_outputs, self.draw_grad_outputs(copy.grad_seed), strict=True)
            )
            if old is not None and new is not None and not same_bits(old, new)
        ]
        return tuple(names)

    def _incoming(self, prepared: dict[str, Any]) -> list[tuple[torch.Size, torch.dtype] | None]:
        roles = [spec.role for spec in self._op.of_role("output", "saved")]
        return [
            None
            if role == "saved"
            or not output.numel()
            or not output.is_floating_point()
            or output.element_size() == 1
            else (output.shape, output.dtype)
            for role, output in zip(roles, describe_outputs(self._op, prepared), strict=True)
        ]

    def _fresh_seed(self) -> int:
        self._next += _SEEDS_APART
        return self._next


def clone_copy(copy: Copy) -> Copy:
    """The same contents at other addresses."""
    return replace(
        copy,
        prepared={
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in copy.prepared.items()
        },
        grad_outputs=[
            None if grad_output is None else grad_output.clone()
            for grad_output in copy.grad_outputs
        ],
    )


def copies_needed(copy_bytes: int, cache_bytes: int, room: int) -> int | str:
    """How many copies make every call cold; where they cannot, why not.

    Args:
        copy_bytes: what one copy's inputs take.
        cache_bytes: of the last-level cache.
        room: how many copies fit in memory.
    """
    wanted = CACHE_MULTIPLE * cache_bytes
    # A single input that is far larger than the cache evicts itself; two of them tell a result
    # that was kept from one that was computed.
    count = max(2, math.ceil(wanted / max(copy_bytes, 1)))
    if room < count and copy_bytes * max(room, 0) < wanted:
        return (
            f"{count} copies of {copy_bytes / 2**20:.3g} MiB of inputs are needed, {room} fit in "
            "the free memory: free some, or take a smaller shape"
        )
    if count > _MOST and copy_bytes * _MOST < cache_bytes:
        return (
            f"{_MOST} copies of {copy_bytes} bytes of inputs stay inside the last-level cache of "
            f"{cache_bytes / 2**20:.0f} MiB: at this size only warm times have a meaning"
        )
    return max(1, min(count, _MOST, room))
