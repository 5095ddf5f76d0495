"""One device: all tensors of a call must lie on the same one."""

from torch import Tensor

from tercet.errors import UnsupportedError


def on_one_device(op: str, first: str, x: Tensor, **others: Tensor | None) -> None:
    """UnsupportedError where one of the others is not on the device of `x`, named `first`."""
    for name, other in others.items():
        if other is not None and other.device != x.device:
            raise UnsupportedError(
                f"{op}: {first} is on {x.device}, {name} on {other.device}: move one of them"
            )
