"""Direct call: an op past torch's dispatcher, where the dispatcher would do nothing but call it."""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.contract import Run
from tercet.kernel.register import behind, on_its_gpu

_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_keys_of, _keys_of_thread = _torch._dispatch_keys, _torch._dispatch_tls_local_include_set


def _keys(*names: str) -> int:
    """A set of torch's dispatch keys, as a number."""
    keys = _torch.DispatchKeySet(_torch.DispatchKey.Undefined)
    for name in names:
        keys = keys | _torch.DispatchKeySet(getattr(_torch.DispatchKey, name))
    return keys.raw_repr()


# of a thread in which nothing traces, transforms or watches, and of a tensor that is torch's own,
# dense and as it lies in memory; the second of each pair is in torch.inference_mode
_IDLE = frozenset({_keys("BackendSelect", "ADInplaceOrView"), _keys("BackendSelect")})
_PLAIN = frozenset(
    keys
    for device in ("CPU", "CUDA")
    for keys in (
        _keys(device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}"),
        _keys(device, f"Autocast{device}"),
    )
)


# what an argument of a schema's type is as a Python object; of others calls go the whole way
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor, torch.nn.Parameter),
    "float": (float,),
    "int": (int,),
    "SymInt": (int,),
    "str": (str,),
    "bool": (bool,),
    "ScalarType": (torch.dtype,),
}


def direct_call(overload: Any) -> Run:
    """The op for its own public function to call.

    From Python to a kernel that is written in Python the dispatcher takes a third of the host's
    time for a packed product, and in eager mode there is nothing for it to decide. Where there is
    (a gradient is wanted; something compiles, traces, transforms, casts, profiles or watches; a
    tensor is no plain one; an argument is not of the schema's type), the call goes the whole way.

    Args:
        overload: an op that `define` made.
    """
    run = behind(overload)
    assert run is not None
    run, allowed = on_its_gpu(run), _allowed_types(overload)
    # of a call's types: where its tensors stand; None where a type is not the schema's
    tensors_of = dict[tuple[type, ...], tuple[int, ...] | None]()

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_idle():
            return overload(*arguments)
        types = tuple(map(type, arguments))
        if types not in tensors_of:
            tensors_of[types] = _tensors_among(types, allowed)
        places = tensors_of[types]
        if places is None:
            return overload(*arguments)
        graded = torch.is_grad_enabled()
        for place in places:
            tensor = arguments[place]
            if (graded and tensor.requires_grad) or _keys_of(tensor).raw_repr() not in _PLAIN:
                return overload(*arguments)
        return run(*arguments)

    return call


def _allowed_types(overload: Any) -> tuple[tuple[type, ...], ...]:
    """Of each argument of the schema."""
    # "Tensor(a0!)?" is a tensor that may be missing, and is written to
    names = [str(each.real_type) for each in overload._schema.arguments]
    found = list[tuple[type, ...]]()
    for name in names:
        optional = name.startswith("Optional[")
        plain = name.removeprefix("Optional[").removesuffix("]")
        found.append(_TYPES.get(plain, ()) + ((type(None),) if optional else ()))
    return tuple(found)


def _tensors_among(
    types: tuple[type, ...], allowed: tuple[tuple[type, ...], ...]
) -> tuple[int, ...] | None:
    if len(types) != len(allowed) or any(
        each not in those for each, those in zip(types, allowed, strict=True)
    ):
        return None
    return tuple(place for place, each in enumerate(types) if each in _TYPES["Tensor"])


def _is_idle() -> bool:
    """Whether nothing in this thread wants to know of operations."""
    return (
        _keys_of_thread().raw_repr() in _IDLE
        and not _torch._is_any_autocast_enabled()
        and not _torch._len_torch_function_stack()
        and not _torch._autograd._profiler_enabled()
    )
