"""Sharded weights: FSDP2 gathers the packed codes of a layer, not its weights.

Each rank holds some rows of W and makes their codes, once a step; with one scale a row they are the
codes that one device would make. `fully_shard` asks a parameter for what is to be gathered
(`fsdp_pre_all_gather`) and what to make of it (`fsdp_post_all_gather`): packed codes and scales go
over the wire, 2 bits a ternary weight, and come back as a GatheredCodes, whose gradient is reduced
like any other's.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from tercet.compress.qat.sharding.wire import Wire, wire_of
from tercet.errors import PlanError
from tercet.formats import Scheme

_ATEN = torch.ops.aten
# what keeps a shard a shard: FSDP cuts, pads and moves parameters with these
_KEEPING = {
    _ATEN.empty_like.default,
    _ATEN.new_zeros.default,
    _ATEN.slice.Tensor,
    _ATEN.copy_.default,
    _ATEN.view.default,
    _ATEN.as_strided.default,
    _ATEN._to_copy.default,
    _ATEN.split.Tensor,
    _ATEN.clone.default,
    _ATEN.detach.default,
}
_same_version = cast(Any, torch.autograd)._unsafe_preserve_version_counter


class ShardedWeight(Tensor):
    """Rows of a weight, held in full precision; gathered as codes.

    Attributes:
        rows: [N / world_size, K].
        wire: how their codes travel.
        made: those codes, packed once a step, and scales; None before the first.
    """

    rows: Tensor
    wire: Wire
    made: tuple[Tensor, Tensor] | None

    @staticmethod
    def __new__(cls: Any, rows: Tensor, wire: Wire) -> "ShardedWeight":
        maker: Any = Tensor._make_wrapper_subclass  # pyright: ignore[reportPrivateUsage]
        return maker(
            cls,
            rows.size(),
            strides=rows.stride(),
            storage_offset=rows.storage_offset(),
            dtype=rows.dtype,
            device=rows.device,
            requires_grad=rows.requires_grad,
        )

    def __init__(self, rows: Tensor, wire: Wire) -> None:
        self.rows, self.wire, self.made = rows, wire, None

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Computes on the rows; what cuts or moves a shard gives shards again."""
        del types
        wires: list[Wire] = []

        def plain(shard: ShardedWeight) -> Tensor:
            wires.append(shard.wire)
            return shard.rows

        flat, named = tree_map_only(cls, plain, (args, kwargs or {}))
        out = func(*flat, **named)
        if func is _ATEN.copy_.default and isinstance(args[0], cls):
            return args[0]
        if func not in _KEEPING:
            return out
        return tree_map_only(Tensor, lambda tensor: cls(tensor, wires[0]), out)

    def fsdp_pre_all_gather(self, mesh: Any) -> tuple[tuple[Tensor, ...], tuple[int, torch.dtype]]:
        """(packed codes, scales) of these rows, and what the other side has to know."""
        del mesh
        assert self.made is not None, "refresh makes codes before a forward pass"
        return self.made, (self.shape[1], self.dtype)

    def fsdp_post_all_gather(
        self,
        gathered: tuple[Tensor, ...],
        metadata: tuple[int, torch.dtype],
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """The whole weight as codes; into `out`, whose memory is there again, if it is given."""
        del param_dtype
        packed, scale = gathered
        if out is not None:
            whole = cast(GatheredCodes, out)
            # the backward pass saved these very tensors, and gets the same values again
            with _same_version(whole.codes), _same_version(whole.scale):
                self.wire.unpack(packed, whole.codes)
                whole.scale.copy_(scale)
            return None
        columns, dtype = metadata
        codes = torch.empty((len(packed), columns), dtype=torch.int8, device=packed.device)
        self.wire.unpack(packed, codes)
        scale = scale.clone()
        return GatheredCodes(codes, scale, dtype), (codes, scale)


class GatheredCodes(Tensor):
    """A whole weight [N, K] as codes and scales: what `linear_qat` gives a gradient to."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls: Any, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> "GatheredCodes":
        maker: Any = Tensor._make_wrapper_subclass  # pyright: ignore[reportPrivateUsage]
        return maker(cls, codes.size(), dtype=dtype, device=codes.device)

    def __init__(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        del dtype
        self.codes, self.scale = codes, scale

    def __repr__(self, *, tensor_contents: object = None) -> str:
        """Its size; of values, which a Tensor would print, there are none."""
        del tensor_contents
        return f"GatheredCodes({list(self.shape)}, {self.dtype})"

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        """What torch.compile passes on in its place, and the dtype that it adds."""
        return ["codes", "scale"], self.dtype

    def _stable_hash_for_caching(self) -> str:
        """What a compiled graph depends on, for torch's cache of them."""
        return f"{self!r} on {self.codes.device}, {list(self.scale.shape)}, {self.requires_grad}"

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], dtype: torch.dtype, size: Any, stride: Any
    ) -> "GatheredCodes":
        """The same of other codes and scales."""
        del size, stride
        return GatheredCodes(inner["codes"], inner["scale"], dtype)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Products take the codes; a detached or viewed weight is the same weight."""
        del types
        if func in (_ATEN.detach.default, _ATEN.as_strided.default, _ATEN.view.default):
            return cls(args[0].codes, args[0].scale, args[0].dtype)
        if func.namespace != "tercet":
            raise NotImplementedError(f"{func} of gathered codes, whose values are not there")
        # a product gets codes and scales as arguments; of the weight it reads nothing
        flat, named = tree_map_only(cls, lambda _: None, (args, kwargs or {}))
        return func(*flat, **named)


def local(tensor: Tensor) -> Tensor:
    """What of a parameter or gradient lies on this device, as a plain tensor; not a copy."""
    shard = shard_of(tensor)
    return _piece(tensor) if shard is None else shard.rows


def shard_of(tensor: Tensor) -> ShardedWeight | None:
    """The very shard that FSDP holds of a weight that is gathered as codes."""
    piece = _piece(tensor)
    return piece if isinstance(piece, ShardedWeight) else None


def _piece(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    # to_local() would give a view
    return tensor._local_tensor  # pyright: ignore[reportPrivateUsage]


def shard_parameter(weight: nn.Parameter, scheme: Scheme, world_size: int) -> nn.Parameter:
    """The parameter as one that `fully_shard` gathers as codes, over so many devices.

    Raises:
        PlanError: rows do not divide, or have no scales of their own.
    """
    if weight.shape[0] % world_size:
        raise PlanError(f"{weight.shape[0]} rows over {world_size} devices: they must divide")
    return nn.Parameter(ShardedWeight(weight.data, wire_of(scheme)))
