"""Calibration: what each linear's inputs look like, one layer in memory at a time.

The hidden states of all calibration sequences go through the layers in step with compression, so
every layer is fitted to the inputs that the compressed layers before it really give. Linears that
read the same tensor (q, k and v; gate and up) share one set of statistics.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.compress.algorithm import Statistics
from tercet.compress.allocator import return_freed_memory
from tercet.compress.lockstep import pass_through
from tercet.compress.products import exact_products, fast_products
from tercet.compress.skeleton import Skeleton
from tercet.models.input_transform import InputTransform
from tercet.models.split_experts import is_expert

_TOKENS_AT_ONCE = 1024
_GRAM_BLOCK = 256

Quantize = Callable[[tuple[str, ...], Statistics], Mapping[str, InputTransform]]
"""Is told the names of linears that share an input, and what that is like over all batches; gives
the transforms of that input, by name, that the quantized ones need."""

_Hook = Callable[[nn.Module, tuple[Any, ...]], None]


def batch_size(length: int) -> int:
    """Sequences of `length` tokens that go through a layer at a time.

    1024 tokens keep what is inside a layer near the cores: a layer of SmolLM2's shape took 0.76 s
    for 64 sequences of 512 tokens two at a time, 0.94 s eight at a time.
    """
    return max(_TOKENS_AT_ONCE // length, 1)


class _Stop(Exception):
    """Ends a forward pass whose remaining layers are of no interest."""


@dataclass(frozen=True)
class _Call:
    """What a model passes to a layer besides the hidden state, for a whole batch."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """The layer's output [batch, length, width] for a batch of at most the recorded size."""
        size = hidden.shape[0]
        named = {name: _truncate_batch(value, size) for name, value in self.named.items()}
        out: Any = layer(hidden, *_truncate_batch(self.positional, size), **named)
        return cast(Tensor, out[0] if isinstance(out, tuple) else out)


class _Recorder(nn.Module):
    """Stands in a layer's place: keeps what the layer is called with, passes the input on."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.hidden: list[Tensor] = []
        self.call: _Call | None = None

    def forward(self, hidden: Tensor, *positional: Any, **named: Any) -> Tensor:
        if self.first:
            self.hidden.append(hidden)
        # the first batch is the largest; later ones cut what was recorded for it
        self.call = self.call or _Call(positional, named)
        if self.last:
            raise _Stop
        return hidden


class _Feeder(nn.Module):
    """Stands in all layers' place: gives the hidden state that they have left."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.hidden


@dataclass
class Accumulator:
    """Running sums over inputs x [tokens, K] of one shared input.

    Of the Gram matrix only the blocks on and above the diagonal are summed.
    """

    members: tuple[str, ...]
    gram: Tensor
    absmax: Tensor
    abssum: Tensor
    drift: Tensor | None = None
    outputs: dict[str, Tensor] | None = None
    tokens: int = 0

    @classmethod
    def empty(cls, members: tuple[str, ...], columns: int) -> "Accumulator":
        """Sums over nothing, for inputs of `columns` columns."""
        zeros = torch.zeros(columns)
        return cls(members, torch.zeros(columns, columns), zeros.clone(), zeros.clone())

    def add(
        self,
        x: Tensor,
        teacher: Tensor | None = None,
        outputs: dict[str, Tensor] | None = None,
    ) -> None:
        """Adds x [.., K], and what the uncompressed model has, if that is followed.

        Args:
            x: inputs of the members.
            teacher: what the uncompressed model has in the place of x.
            outputs: in the place of `teacher`, what each member makes of it there, without bias.
        """
        flat = x.detach().float().reshape(-1, x.shape[-1])
        for first in range(0, flat.shape[1], _GRAM_BLOCK):
            rows = slice(first, first + _GRAM_BLOCK)
            self.gram[rows, first:].addmm_(flat[:, rows].T, flat[:, first:])
        if outputs is not None:
            self.outputs = self.outputs or {}
            for name, y in outputs.items():
                made = y.detach().float().reshape(len(flat), -1)
                if name not in self.outputs:
                    self.outputs[name] = torch.zeros(made.shape[1], flat.shape[1])
                self.outputs[name].addmm_(made.T, flat)
        elif teacher is not None:
            if self.drift is None:
                self.drift = torch.zeros_like(self.gram)
            apart = teacher.detach().float().reshape(flat.shape) - flat
            self.drift.addmm_(apart.T, flat)
        magnitude = flat.abs()
        self.absmax = torch.maximum(self.absmax, magnitude.amax(0))
        self.abssum += magnitude.sum(0)
        self.tokens += flat.shape[0]

    def statistics(self) -> Statistics:
        """Means over all tokens, in the memory of the sums, which are lost."""
        gram = self.gram.div_(self.tokens)
        for first in range(0, len(gram), _GRAM_BLOCK):
            end = first + _GRAM_BLOCK
            block = gram[first:end, first:end]
            block.copy_(block.triu() + block.triu(1).T)
            gram[end:, first:end] = gram[first:end, end:].T
        return Statistics(
            gram=gram,
            absmax=self.absmax,
            absmean=self.abssum / self.tokens,
            drift=None if self.drift is None else self.drift.div_(self.tokens),
            outputs={name: made.div_(self.tokens) for name, made in (self.outputs or {}).items()},
        )


@dataclass
class Collector:
    """Groups linears by the tensor they read and accumulates each group's statistics."""

    groups: dict[tuple[str, ...], Accumulator] = field(
        default_factory=dict[tuple[str, ...], Accumulator]
    )

    def add(self, seen: dict[str, Tensor], teacher: dict[str, Tensor]) -> None:
        """Adds the inputs of one batch by linear, and those of the uncompressed model, if any."""
        for members in shared_inputs(seen):
            x = seen[members[0]]
            if members not in self.groups:
                self.groups[members] = Accumulator.empty(members, x.shape[-1])
            self.groups[members].add(x, teacher.get(members[0]))


def shared_inputs(seen: dict[str, Tensor]) -> list[tuple[str, ...]]:
    """The names of inputs by linear, those of one tensor together, in the order of the first."""
    by_tensor: dict[int, list[str]] = {}
    for name, x in seen.items():
        by_tensor.setdefault(id(x), []).append(name)
    return [tuple(names) for names in by_tensor.values()]


@dataclass
class Followed:
    """What the uncompressed model's linears see in one layer.

    Attributes:
        groups: of each linear the names of all that share its input, in the order of their turns.
        inputs: of each group that input [.., K] by batch, where `outputs` does not have the group.
        outputs: of each linear what it makes of that, without bias, [.., N] by batch: where all of
            a group make fewer columns than they read.
    """

    groups: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    inputs: dict[tuple[str, ...], list[Tensor]] = field(
        default_factory=dict[tuple[str, ...], list[Tensor]]
    )
    outputs: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])

    def group(self, seen: dict[str, Tensor]) -> list[tuple[str, ...]]:
        """Takes note of which linears share an input in one batch, and returns those."""
        found = shared_inputs(seen)
        for members in found:
            for name in members:
                self.groups.setdefault(name, members)
        return found

    def add(self, seen: dict[str, Tensor], made: dict[str, Tensor], hidden: Tensor) -> None:
        """Adds a batch: inputs, outputs of what makes fewer columns, and the layer's own input."""
        for members in self.group(seen):
            # the uncompressed model may send other tokens to an expert: they do not pair up
            if is_expert(members[0]):
                continue
            x = seen[members[0]]
            if sum(made[name].shape[-1] if name in made else inf for name in members) < x.shape[-1]:
                for name in members:
                    self.outputs.setdefault(name, []).append(made[name])
                continue
            # hidden will be overwritten, and BERT's queries read it itself
            own = x.untyped_storage().data_ptr() != hidden.untyped_storage().data_ptr()
            self.inputs.setdefault(members, []).append(x if own else x.clone())

    def statistics(self, members: tuple[str, ...], inputs: dict[int, Tensor]) -> Statistics:
        """Of a group whose inputs in the compressed model, by batch, are these."""
        columns = next(iter(inputs.values())).shape[-1]
        sums = Accumulator.empty(members, columns)
        teacher = self.inputs.pop(members, None)
        made = {name: self.outputs.pop(name) for name in members if name in self.outputs}
        for batch, x in inputs.items():
            outputs = {name: parts[batch] for name, parts in made.items()}
            sums.add(x, None if teacher is None else teacher[batch], outputs or None)
        return sums.statistics()


@contextmanager
def inputs_of(
    targets: dict[str, nn.Module], stop: bool = False
) -> Generator[dict[str, Tensor], None, None]:
    """Within the block, the targets' inputs in the latest forward pass, by name.

    Args:
        targets: the linears by name.
        stop: end the forward pass as soon as every target was seen.
    """
    seen: dict[str, Tensor] = {}

    def hook_for(name: str) -> _Hook:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            seen[name] = arguments[0]
            if stop and len(seen) == len(targets):
                raise _Stop

        return hook

    with ExitStack() as stack:
        for name, module in targets.items():
            stack.callback(module.register_forward_pre_hook(hook_for(name)).remove)
        yield seen


@contextmanager
def outputs_of(targets: dict[str, nn.Module]) -> Generator[dict[str, Tensor], None, None]:
    """Within the block, what those targets that make fewer columns of their input made of it.

    By name, of the latest forward pass, without biases.
    """
    made: dict[str, Tensor] = {}

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, _: tuple[Any, ...], output: Tensor) -> None:
            bias = cast("Tensor | None", module.bias)
            made[name] = output if bias is None else output - bias

        return hook

    with ExitStack() as stack:
        for name, module in targets.items():
            rows, columns = cast(Tensor, module.weight).shape
            if rows < columns:
                stack.callback(module.register_forward_hook(hook_for(name)).remove)
        yield made


@dataclass
class Stream:
    """The hidden states of all calibration sequences between two layers.

    Attributes:
        hidden: [sequences, length, width], as the layers compressed so far leave them.
        calls: how the model calls each layer.
        teacher: the same in the uncompressed model; None where it is not followed.
    """

    hidden: Tensor
    calls: list[_Call]
    teacher: Tensor | None = None

    @classmethod
    @torch.no_grad()
    @fast_products()
    def start(cls, skeleton: Skeleton, tokens: Tensor) -> "Stream":
        """The inputs of the first layer for tokens [sequences, length]; embeddings are filled."""
        count = len(skeleton.layers)
        recorders = [_Recorder(first=i == 0, last=i == count - 1) for i in range(count)]
        with _standing_in(skeleton, recorders):
            for part in torch.split(tokens, batch_size(tokens.shape[1])):
                _run(skeleton.model, part)
        hidden = torch.cat(recorders[0].hidden)
        return cls(hidden, [recorder.call for recorder in recorders if recorder.call])

    @torch.no_grad()
    @fast_products()
    def advance_quantizing(
        self, layer: nn.Module, index: int, targets: dict[str, nn.Module], quantize: Quantize
    ) -> None:
        """Replaces the hidden states by the layer's outputs, and its linears on the way.

        Each group of linears is quantized for the inputs that the quantized ones before it give.
        The uncompressed model's hidden states, where they are followed, pass the layer first.

        Args:
            layer: still uncompressed.
            index: of the layer.
            targets: the linears by name.
            quantize: puts a group's stored weights in the place of its own.
        """
        followed = self._follow(layer, index, targets)
        parts = [part for part, _ in self._batches()]

        def visit(
            members: tuple[str, ...], inputs: dict[int, Tensor]
        ) -> Mapping[str, InputTransform]:
            statistics = followed.statistics(members, inputs)
            return_freed_memory()
            with exact_products():
                return quantize(members, statistics)

        runs = [partial(self.calls[index], layer, part) for part in parts]
        after = pass_through(runs, targets, followed.groups, visit)
        for part, output in zip(parts, after, strict=True):
            part.copy_(output)

    def _follow(self, layer: nn.Module, index: int, targets: dict[str, nn.Module]) -> Followed:
        """Takes the uncompressed model's hidden states through the layer, where there are any."""
        followed = Followed()
        for part, teacher in self._batches():
            if teacher is None:
                with inputs_of(targets, stop=True) as seen, suppress(_Stop):
                    self.calls[index](layer, part)
                followed.group(seen)
                break
            with inputs_of(targets) as seen, outputs_of(targets) as made:
                after = self.calls[index](layer, teacher)
            followed.add(seen, made, teacher)
            teacher.copy_(after)
        return followed

    @torch.no_grad()
    @fast_products()
    def advance_teacher(self, layer: nn.Module, index: int) -> None:
        """Takes the uncompressed model's hidden states through the layer, still uncompressed."""
        for _, teacher in self._batches():
            if teacher is not None:
                teacher.copy_(self.calls[index](layer, teacher))

    def _batches(self) -> list[tuple[Tensor, Tensor | None]]:
        size = batch_size(self.hidden.shape[1])
        parts = list(torch.split(self.hidden, size))
        if self.teacher is None:
            return [(part, None) for part in parts]
        return list(zip(parts, torch.split(self.teacher, size), strict=True))

    @torch.no_grad()
    @fast_products()
    def advance(self, layer: nn.Module, index: int) -> None:
        """Replaces the hidden states by the layer's outputs, in place."""
        for part in torch.split(self.hidden, batch_size(self.hidden.shape[1])):
            part.copy_(self.calls[index](layer, part))

    @torch.no_grad()
    @fast_products()
    def collect_after(
        self, skeleton: Skeleton, tokens: Tensor, targets: dict[str, nn.Module]
    ) -> Collector:
        """Statistics of linears behind the last layer (a head, a pooler)."""
        collector, feeder = Collector(), _Feeder()
        with _standing_in(skeleton, [feeder]):
            for ids, (part, teacher) in zip(
                torch.split(tokens, batch_size(tokens.shape[1])), self._batches(), strict=True
            ):
                inputs: list[dict[str, Tensor]] = []
                for feeder.hidden in (part, teacher):
                    with inputs_of(targets, stop=True) as seen:
                        if feeder.hidden is not None:
                            _run(skeleton.model, ids)
                    inputs.append(seen)
                collector.add(inputs[0], inputs[1])
        return collector


def _run(model: nn.Module, ids: Tensor) -> None:
    caching = {"use_cache": False} if getattr(model, "can_generate", bool)() else {}
    try:
        model(input_ids=ids, **caching)
    except _Stop:
        return


def _truncate_batch(value: Any, size: int) -> Any:
    """A recorded argument, cut to a last and shorter batch where it has a batch dimension."""
    if isinstance(value, tuple):
        return tuple(_truncate_batch(part, size) for part in cast("tuple[Any, ...]", value))
    if isinstance(value, Tensor) and value.ndim and value.shape[0] > size:
        return value[:size]
    return value


@contextmanager
def _standing_in(skeleton: Skeleton, replacements: list[Any]) -> Generator[None, None, None]:
    parent_name, _, list_name = skeleton.layers_name.rpartition(".")
    parent = skeleton.module(parent_name)
    setattr(parent, list_name, nn.ModuleList(replacements))
    try:
        yield
    finally:
        setattr(parent, list_name, skeleton.layers)
