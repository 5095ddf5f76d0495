"""Author errors: exceptions of an op's own reference, cases or inputs, in words for its author."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from torch import Tensor

from tercet.errors import TercetError, UnsupportedError
from tercet.kernel.contract import Op
from tercet.kernel.exits_raise import exits_raise
from tercet.kernel.source_place import source_place

_More = ParamSpec("_More")
_Result = TypeVar("_Result")


def blames_author(
    function: Callable[Concatenate[Op, _More], _Result],
) -> Callable[Concatenate[Op, _More], _Result]:
    """What the op's own files raise is bad input, with the line that is to blame.

    Or with what the op's reference or inputs were called with. All else is raised as it is.
    """

    @wraps(function)
    def run(op: Op, /, *arguments: _More.args, **named: _More.kwargs) -> _Result:
        try:
            with exits_raise():
                return function(op, *arguments, **named)
        except TercetError:
            raise
        # an exit, too, which would pass for a green check
        except (Exception, SystemExit) as error:
            folder = Path(inspect.getfile(op.reference)).parent
            place = source_place(error, folder)
            if place is None and not _is_call_of(op, error):
                raise
            raise UnsupportedError(
                f"op {op.name!r}, {folder / (place or 'op.py')}: {type(error).__name__}: {error}"
            ) from error

    return run


def reference_outputs(op: Op, arguments: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """What the op's reference gives: a tensor for each output that op.py declares.

    UnsupportedError where it gives anything else.
    """
    return declared_outputs(op, "its reference", op.reference(**arguments))


def declared_outputs(op: Op, whose: str, result: object) -> tuple[Tensor, ...]:
    """A result as a tuple of tensors, one for each output that op.py declares.

    UnsupportedError where it is none; `whose` says in the message what gave it.
    """
    names = [spec.name for spec in op.of_role("output", "saved")]
    found = cast("tuple[object, ...]", result if isinstance(result, tuple | list) else (result,))
    outputs = tuple(each for each in found if isinstance(each, Tensor))
    if not len(outputs) == len(found) == len(names):
        given = ", ".join(type(each).__name__ for each in found) or "nothing"
        raise UnsupportedError(
            f"op {op.name!r}: {whose} gives {given}; op.py declares {len(names)} "
            f"output{'s' * (len(names) != 1)} ({', '.join(names)}), saved ones included: return "
            "that many tensors, or change `tensors`"
        )
    return outputs


def _is_call_of(op: Op, error: BaseException) -> bool:
    """Whether it is about the arguments that one of the op's functions was called with."""
    called = [each.__name__ for each in (op.reference, op.inputs, op.magnitude) if each]
    return isinstance(error, TypeError) and any(f"{name}()" in str(error) for name in called)
