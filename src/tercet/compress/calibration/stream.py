"""Stream: the hidden states of all calibration sequences, from layer to layer.

They go through the layers in step with compression, so every layer is fitted to the inputs that the
compressed layers before it really give. Linears that read the same tensor (q, k and v; gate and up)
share one set of statistics.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args, get_origin

import torch
from torch import Tensor, nn

from tercet.compress.algorithm import Statistics
from tercet.compress.allocator import return_freed_memory
from tercet.compress.calibration.accumulator import Accumulator, Collector
from tercet.compress.calibration.followed import Followed
from tercet.compress.calibration.lockstep import pass_through
from tercet.compress.calibration.module_hooks import Stop, inputs_of, outputs_of
from tercet.compress.calibration.products import exact_products, fast_products, half_products
from tercet.compress.calibration.recompute import Inputs, Teacher, pass_in_turns
from tercet.compress.skeleton import Skeleton
from tercet.errors import TercetError, UnsupportedError
from tercet.models.input_transform import InputTransform

# on a GPU a product of 1024 tokens leaves it idle
_TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}

Quantize = Callable[[tuple[str, ...], Statistics], Mapping[str, InputTransform]]
"""Is told the names of linears that share an input, and what that is like over all batches; gives
the transforms of that input, by name, that the quantized ones need."""


def batch_size(length: int, device: torch.device | None = None) -> int:
    """Sequences of `length` tokens that go through a layer at a time.

    On a CPU 1024 tokens keep what is inside a layer near the cores: a layer of SmolLM2's shape took
    0.76 s for 64 sequences of 512 tokens two at a time, 0.94 s eight at a time.
    """
    return max(_TOKENS_AT_ONCE[device.type if device else "cpu"] // length, 1)


@dataclass(frozen=True)
class LayerCall:
    """What a model passes to a layer besides the hidden state, for a whole batch.

    Attributes:
        positional, named: the arguments.
        batch: sequences of that batch.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    batch: int

    def __call__(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        """The layer's output [batch, length, width] for a batch of at most the recorded size."""
        with half_products() if hidden.device.type == "cuda" else nullcontext():
            return self.unrounded(layer, hidden)

    @fast_products()
    def differentiably(self, layer: Callable[..., Any], hidden: Tensor) -> Tensor:
        """The same with gradients, of what computes as the layer does."""
        return self.unrounded(layer, hidden)

    def unrounded(self, layer: Callable[..., Any], hidden: Tensor) -> Tensor:
        """The same, with products of the precision that is set."""
        cut = partial(_truncate_batch, size=hidden.shape[0], batch=self.batch)
        named = {name: cut(value) for name, value in self.named.items()}
        with _refused("a layer"):
            out: Any = layer(hidden, *cut(self.positional), **named)
        return cast(Tensor, out[0] if isinstance(out, tuple) else out)


class _LayerOutput(Tensor):
    """A hidden state as any model takes it: the first of a layer's outputs is all of it.

    Some models' layers give a tuple, some a tensor, and only a layer that is run shows which. No
    model looks at the first sequence alone.

    Attributes:
        outputs: how many a layer says that it gives, for models that name them all.
    """

    outputs = 1

    # what is computed from it is a plain tensor, as with a Parameter
    __torch_function__: Any = cast(Any, torch)._C._disabled_torch_function_impl

    def __getitem__(self, index: Any) -> Tensor:
        plain = self.as_subclass(Tensor)
        return plain if type(index) is int and index == 0 else plain[index]

    def __iter__(self) -> Iterator[Any]:
        plain = self.as_subclass(Tensor)
        return iter((plain, *(self.outputs - 1) * [None]) if self.outputs > 1 else plain)


class _Substitute(nn.Module):
    """Stands in a layer's place, and has what else models look at of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        # in a tuple it is no module of this one
        self._layer = (layer,)
        given = type(layer).forward.__annotations__.get("return")
        self._outputs = len(get_args(given)) if get_origin(given) is tuple else 1

    def give(self, hidden: Tensor) -> Tensor:
        """What stands for the layer's outputs; a tensor of another kind stands for itself."""
        if type(hidden) is not Tensor:
            return hidden
        found = hidden.as_subclass(_LayerOutput)
        found.outputs = self._outputs
        return found

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._layer[0], name)


class _Recorder(_Substitute):
    """Keeps what the layer is called with, and passes the input on."""

    def __init__(self, layer: nn.Module, first: bool, last: bool) -> None:
        super().__init__(layer)
        self.first, self.last = first, last
        self.hidden: list[Tensor] = []
        self.call: LayerCall | None = None

    def forward(self, hidden: Tensor, *positional: Any, **named: Any) -> Tensor:
        if self.first:
            self.hidden.append(hidden)
        # the first batch is the largest; later ones cut what was recorded for it
        self.call = self.call or LayerCall(positional, named, len(hidden))
        if self.last:
            raise Stop
        return self.give(hidden)


class _Feeder(_Substitute):
    """Stands in all layers' place: gives the hidden state that they have left."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.hidden: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        return None if self.hidden is None else self.give(self.hidden)


@dataclass
class Stream:
    """The hidden states of all calibration sequences between two layers.

    Attributes:
        hidden: [sequences, length, width], as the layers compressed so far leave them.
        calls: how the model calls each layer.
        teacher: the same in the uncompressed model; None where it is not followed.
        recompute: a batch passes a layer anew for each group of linears, and holds nothing between;
            else all batches pass it once, and each holds what it has computed.
        early: modules outside of the layers that run before them.
    """

    hidden: Tensor
    calls: list[LayerCall]
    teacher: Tensor | None = None
    recompute: bool = False
    early: frozenset[str] = frozenset()

    @classmethod
    @torch.no_grad()
    @fast_products()
    def start(cls, skeleton: Skeleton, tokens: Tensor) -> "Stream":
        """The inputs of the first layer for tokens [sequences, length]; embeddings are filled.

        What is inside a layer for all tokens does not fit a GPU, so there it is computed anew.
        """
        last = len(skeleton.layers) - 1
        recorders = [
            _Recorder(layer, first=index == 0, last=index == last)
            for index, layer in enumerate(skeleton.layers)
        ]
        with _standing_in(skeleton, recorders), skeleton.filled_when_run() as early:
            for part in torch.split(tokens, batch_size(tokens.shape[1], skeleton.device)):
                _run(skeleton, part)
        if not recorders[0].hidden or recorders[-1].call is None:
            raise UnsupportedError(
                f"{type(skeleton.model).__name__} does not run all of {skeleton.layers_name} on "
                f"token ids: {_DATA_FREE}"
            )
        hidden = torch.cat(recorders[0].hidden)
        calls = [one.call for one in recorders if one.call]
        return cls(hidden, calls, recompute=skeleton.device.type == "cuda", early=frozenset(early))

    @torch.no_grad()
    @fast_products()
    def advance_quantizing(
        self, layer: nn.Module, index: int, targets: dict[str, nn.Module], quantize: Quantize
    ) -> None:
        """Replaces the hidden states by the layer's outputs, and its linears on the way.

        Each group of linears is quantized for the inputs that the quantized ones before it give,
        and for those of the uncompressed model where that is followed.

        Args:
            layer: still uncompressed.
            index: of the layer.
            targets: the linears by name.
            quantize: puts a group's stored weights in the place of its own.
        """
        if self.recompute:
            self._advance_recomputing(layer, index, targets, quantize)
            return
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
            _overwrite(part, output)

    def _advance_recomputing(
        self, layer: nn.Module, index: int, targets: dict[str, nn.Module], quantize: Quantize
    ) -> None:
        batches = self._batches()
        call = partial(self.calls[index], layer)

        def visit(members: tuple[str, ...], seen: Inputs) -> Mapping[str, InputTransform]:
            sums: Accumulator | None = None
            for x, teacher, outputs in seen:
                sums = sums or Accumulator.empty(members, x.shape[-1], x.device)
                sums.add(x, teacher, outputs)
                # what a variable still names is held while the group is quantized
                del x, teacher, outputs
            if sums is None:
                return {}
            statistics, sums = sums.statistics(), None
            with exact_products():
                return quantize(members, statistics)

        runs = [partial(call, part) for part, _ in batches]
        teachers = [Teacher(partial(call, part), part) for _, part in batches if part is not None]
        after = pass_in_turns(runs, teachers or None, targets, visit)
        for (part, _), output in zip(batches, after, strict=True):
            _overwrite(part, output)

    def _follow(self, layer: nn.Module, index: int, targets: dict[str, nn.Module]) -> Followed:
        """Takes the uncompressed model's hidden states through the layer, where there are any."""
        followed = Followed()
        for part, teacher in self._batches():
            if teacher is None:
                with inputs_of(targets, stop=True) as seen, suppress(Stop):
                    self.calls[index](layer, part)
                followed.group(seen)
                break
            with inputs_of(targets) as seen, outputs_of(targets) as made:
                after = self.calls[index](layer, teacher)
            followed.add(seen, made, teacher)
            _overwrite(teacher, after)
        return followed

    @torch.no_grad()
    @fast_products()
    def advance_teacher(self, layer: nn.Module, index: int) -> None:
        """Takes the uncompressed model's hidden states through the layer, still uncompressed."""
        for _, teacher in self._batches():
            if teacher is not None:
                _overwrite(teacher, self.calls[index](layer, teacher))

    def _batches(self) -> list[tuple[Tensor, Tensor | None]]:
        size = batch_size(self.hidden.shape[1], self.hidden.device)
        parts = list(torch.split(self.hidden, size))
        if self.teacher is None:
            return [(part, None) for part in parts]
        return list(zip(parts, torch.split(self.teacher, size), strict=True))

    @torch.no_grad()
    @fast_products()
    def advance(self, layer: nn.Module, index: int) -> None:
        """Replaces the hidden states by the layer's outputs, in place."""
        for part, _ in self._batches():
            _overwrite(part, self.calls[index](layer, part))

    @torch.no_grad()
    @exact_products()
    def pass_exactly(self, layer: nn.Module, index: int, hidden: Tensor) -> Tensor:
        """The layer's outputs for one batch of its inputs [batch, length, width], none rounded."""
        return self.calls[index].unrounded(layer, hidden)

    @torch.no_grad()
    @fast_products()
    def collect_after(
        self, skeleton: Skeleton, tokens: Tensor, targets: dict[str, nn.Module]
    ) -> Collector:
        """Statistics of linears behind the last layer (a head, a pooler)."""
        collector, feeder = Collector(), _Feeder(skeleton.layers[0])
        with _standing_in(skeleton, [feeder]), skeleton.filled_when_run():
            for ids, (part, teacher) in zip(
                torch.split(tokens, batch_size(tokens.shape[1], self.hidden.device)),
                self._batches(),
                strict=True,
            ):
                inputs: list[dict[str, Tensor]] = []
                for feeder.hidden in (part, teacher):
                    with inputs_of(targets, stop=True) as seen:
                        if feeder.hidden is not None:
                            _run(skeleton, ids)
                    inputs.append(seen)
                collector.add(inputs[0], inputs[1])
        return collector


@torch.no_grad()
@exact_products()
def logits_after(skeleton: Skeleton, ids: Tensor, hidden: Tensor) -> Tensor:
    """The model's logits [batch, length, vocabulary] for what its last layer has given.

    Args:
        skeleton: a language model; what lies outside of its layers is filled.
        ids: the tokens [batch, length].
        hidden: the last layer's outputs for them [batch, length, width].
    """
    feeder = _Feeder(skeleton.layers[0])
    feeder.hidden = hidden
    with _standing_in(skeleton, [feeder]):
        return _run(skeleton, ids).logits


def _run(skeleton: Skeleton, ids: Tensor) -> Any:
    model: Any = skeleton.model
    caching = {"use_cache": False} if getattr(model, "can_generate", bool)() else {}
    try:
        with _refused(f"{type(model).__name__}, of {ids.shape[1]} tokens at once,"):
            return model(input_ids=ids.to(skeleton.device), **caching)
    except Stop:
        return None


_DATA_FREE = (
    "calibration runs a text model by its token ids alone; a plan whose rules need no inputs (rtn "
    "or hqq) and has no blockwise takes every model"
)


def _overwrite(hidden: Tensor, output: Tensor) -> None:
    """Hidden states by what a layer makes of them."""
    if output.shape != hidden.shape:
        raise UnsupportedError(
            f"a layer makes {list(output.shape)} of a hidden state {list(hidden.shape)}: "
            f"{_DATA_FREE}"
        )
    hidden.copy_(output)


@contextmanager
def _refused(what: str) -> Generator[None]:
    """UnsupportedError for what a model of transformers raises when it is run in this way."""
    try:
        yield
    except (Stop, TercetError, torch.OutOfMemoryError, MemoryError):
        raise
    # each class of models is code of its own
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise UnsupportedError(
            f"{what} cannot be run on calibration text: {type(error).__name__}: {said}: "
            f"{_DATA_FREE}"
        ) from error


def _truncate_batch(value: Any, *, size: int, batch: int) -> Any:
    """A recorded argument, cut to a last and shorter batch where it has a batch dimension.

    Bloom's positions have one of sequences times heads.
    """
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return tuple(_truncate_batch(part, size=size, batch=batch) for part in parts)
    if size < batch and isinstance(value, Tensor) and value.ndim and not value.shape[0] % batch:
        return value[: value.shape[0] // batch * size]
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
