"""What passes through linears while a model runs: looked at, or transformed on its way in."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch import Tensor, nn

from tercet.models.input_transform import InputTransform

Hook = Callable[[nn.Module, tuple[Any, ...]], None]


class Stop(Exception):
    """Ends a forward pass whose remaining layers are of no interest."""


def one_storage(a: Tensor, b: Tensor) -> bool:
    """Whether what is written to one may be seen in the other."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@contextmanager
def inputs_of(
    targets: dict[str, nn.Module], stop: bool = False
) -> Generator[dict[str, Tensor], None, None]:
    """Within the block, the targets' inputs in a forward pass, by name: their first, of several.

    Args:
        targets: the linears by name.
        stop: end the forward pass as soon as every target was seen.
    """
    seen: dict[str, Tensor] = {}

    def hook_for(name: str) -> Hook:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            # DeBERTa's queries and keys read positions, too
            seen.setdefault(name, arguments[0])
            if stop and len(seen) == len(targets):
                raise Stop

        return hook

    with ExitStack() as stack:
        for name, module in targets.items():
            stack.callback(module.register_forward_pre_hook(hook_for(name)).remove)
        yield seen


@contextmanager
def outputs_of(targets: dict[str, nn.Module]) -> Generator[dict[str, Tensor], None, None]:
    """Within the block, what those targets that make fewer columns of their input made of it.

    By name, of a forward pass, of their first input, without biases.
    """
    made: dict[str, Tensor] = {}

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
            # a router of Llama 4 is a linear that gives more
            if isinstance(output, Tensor) and name not in made:
                bias = cast("Tensor | None", module.bias)
                # a copy: Falcon adds to what comes out
                made[name] = output.clone() if bias is None else output - bias

        return hook

    with ExitStack() as stack:
        for name, module in targets.items():
            rows, columns = cast(Tensor, module.weight).shape
            if rows < columns:
                stack.callback(module.register_forward_hook(hook_for(name)).remove)
        yield made


@contextmanager
def transforming(
    targets: Mapping[str, nn.Module], transforms: Mapping[str, InputTransform]
) -> Generator[None]:
    """Within the block, the inputs of those targets that have a transform are transformed."""

    def hook_for(transform: InputTransform) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda _, arguments: (transform(arguments[0]), *arguments[1:])

    with ExitStack() as stack:
        for name, transform in transforms.items():
            hook = targets[name].register_forward_pre_hook(hook_for(transform))
            stack.callback(hook.remove)
        yield
