"""QuantizedWeight: a weight that trains, and its codes, made once for each optimizer step."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tercet.compress.ptq.qat import Options
from tercet.compress.ptq.qat_codes import (
    LEARNED,
    check_activation,
    first_step,
    pack,
)
from tercet.compress.qat.sharding.weights import local, shard_of
from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor, Scheme
from tercet.ops.fake_quantize import count_changed, fake_quantize, fake_quantize_gradient
from tercet.packed_weight import PreparedWeight, prepare


class _StraightThrough(torch.autograd.Function):
    """The values, with the weight in the graph in their place."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.to(ctx.dtype), None


class QuantizedWeight(nn.Module):
    """W [N, K] in training. `swap.refresh` after each change; every forward pass reads the result.

    With share s of the ramp, layers see (1 - s) W + s Q(W); s is 1 at the end.

    Args:
        name: for messages.
        weight: W, a floating-point parameter; it stays the same object, so it may be tied.
        scheme, options: how it is quantized.
        dtype: of the values that products read.

    Attributes:
        name: as it was given.
        weight: the parameter.
        step: [R, C] float32, a parameter where scales are learned, else None.
        codes: [N, K] int8, of the last refresh.
        scale: [R, C] float32.
        values: [N, K] in dtype; None where products are of codes.
        share: s.
        whole: whether s is 1: layers see Q(W) alone.
        products_of_codes: whether a forward pass multiplies codes: s is 1, the input quantized.
    """

    codes: Tensor
    scale: Tensor
    values: Tensor | None
    seed: Tensor | None

    def __init__(
        self,
        name: str,
        weight: nn.Parameter,
        scheme: Scheme,
        options: Options,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        check_activation(name, scheme, options.activation)
        self.name = name
        self.scheme, self.options, self.dtype = scheme, options, dtype
        self._set_share(1.0)
        self.weight = weight
        step = first_step(weight.detach(), scheme, options.method)
        self.step = None if step is None else nn.Parameter(step.to(weight.device))
        for part in ("codes", "scale", "values"):
            self.register_buffer(part, None, persistent=False)
        random = options.activation is not None and options.weight_gradient == "int8"
        seed = torch.zeros((), dtype=torch.int64, device=weight.device) if random else None
        self.register_buffer("seed", seed, persistent=False)
        self._served: PreparedWeight | None = None
        self._made_of: tuple[object, ...] | None = None
        self._trained: Tensor | None = None

    def _set_share(self, share: float) -> None:
        # forward passes ask these two, not the share: torch.compile would compile for each share
        self.share, self.whole = share, share == 1.0
        self.products_of_codes = self.whole and self.options.activation is not None

    @property
    def has_codes(self) -> bool:
        """Whether there are codes of the weight before it changed."""
        return self._buffers["codes"] is not None

    def prepare(self, share: float, seed: int) -> None:
        """What comes before new codes.

        Args:
            share: of the ramp.
            seed: of what is rounded at random until the next.
        """
        self._set_share(share)
        if self.seed is not None:
            self.seed.fill_(seed)

    def make(self, counting: bool) -> Tensor | None:
        """Makes codes, scales and values of the weight as it is; how many codes changed, int64 [].

        Args:
            counting: whether changed codes are counted; None otherwise, and of the first codes.
        """
        old = self._buffers["codes"]
        shard = shard_of(self.weight)
        made = fake_quantize(
            local(self.weight),
            None if self.step is None else local(self.step),
            scheme=self.scheme.name,
            method=self.options.method,
            fake_dtype=None if self.products_of_codes else self.dtype,
        )
        packed = None if shard is None else shard.wire.pack(made.codes)
        self.keep(made.codes, made.scale, packed, made.fake)
        return count_changed(old, self.codes) if counting and old is not None else None

    def keep(
        self, codes: Tensor, scale: Tensor, packed: Tensor | None, values: Tensor | None
    ) -> None:
        """Takes what was made of the weight.

        Args:
            codes, scale: as the attributes.
            packed: the codes as they travel, where the weight is cut over devices.
            values: the quantized weight in dtype, where products read it.
        """
        # past nn.Module's own setting, a fifth of the host's time here
        self._buffers.update(codes=codes, scale=scale, values=values)
        if packed is not None:
            shard = shard_of(self.weight)
            assert shard is not None
            shard.made = (packed, scale)
        if values is not None and not self.whole:
            values.lerp_(self.weight.to(self.dtype), 1 - self.share)
        self._link()
        self.__dict__.update(_served=None, _made_of=self._state())

    def _link(self) -> None:
        """Puts the weight behind the values in autograd's graph, once for all forward passes."""
        values = self._buffers["values"]
        if values is not None and self.weight.requires_grad:
            with torch.enable_grad():
                values = cast(Tensor, _StraightThrough.apply(self.weight, values))
        self.__dict__["_trained"] = values

    def _state(self) -> tuple[object, ...] | None:
        """Another one after each change of weight or step; None where changes are not counted."""
        parts = [self.weight] if self.step is None else [self.weight, self.step]
        if any(part.is_inference() for part in parts) or shard_of(self.weight) is not None:
            return None
        return tuple((id(part), part._version) for part in parts)

    def check_fresh(self) -> None:
        """UnsupportedError where a forward pass would see the codes of another weight, or none."""
        if torch.compiler.is_compiling():
            return
        if not self.has_codes:
            raise UnsupportedError(
                f"{self.name}: has no codes yet: call refresh(quantized), of "
                "tercet.compress.qat.swap, before the first forward pass"
            )
        if self._made_of is not None and self._made_of != self._state():
            raise UnsupportedError(
                f"{self.name}: its weight was changed (by an optimizer, load_state_dict, a copy) "
                "since its codes were made: call refresh(quantized), of tercet.compress.qat.swap, "
                "before the next forward pass"
            )

    @property
    def serves(self) -> bool:
        """Whether a forward pass is one of the packed weight: of a trained model, by inference."""
        learns = torch.is_grad_enabled() and self.weight.requires_grad
        return self.whole and not self.training and not learns

    def trainable_values(self) -> Tensor:
        """The values [N, K], whose gradient goes to the weight: the straight-through estimator."""
        self.check_fresh()
        assert self._trained is not None
        return self._trained

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedWeight":
        """To another device, or dtype: codes of another dtype's weight are made anew."""
        before, fresh = self.weight.dtype, self._made_of == self._state()
        super()._apply(fn, recurse)
        self._served = None
        if self.weight.dtype != before:
            self.dtype = self.weight.dtype
            if self.step is not None:
                self.step.data = self.step.data.float()
            self._buffers.update(codes=None, scale=None, values=None)
        elif self._made_of is not None:
            self._made_of = self._state() if fresh else ()
        self._link()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: whether codes are the weight's, which knows its own changes."""
        fresh = self._made_of is not None and self._made_of == self._state()
        return {**self.__dict__, "_made_of": fresh, "_served": None, "_trained": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The copy's codes are its own weight's where the original's were."""
        super().__setstate__(state)
        self._made_of = self._state() if state["_made_of"] else ()
        self._link()

    @torch.no_grad()
    def finish_gradient(self) -> None:
        """Once a step, after all microbatches: the gradient of the values becomes that of the
        weight and of a learned step."""
        if self.options.method not in LEARNED or self.weight.grad is None:
            return
        assert self.step is not None
        rows = local(self.weight.grad)
        gradient, step = fake_quantize_gradient(
            rows,
            local(self.weight),
            local(self.step),
            self.codes,
            scheme=self.scheme.name,
            method=self.options.method,
        )
        rows.lerp_(gradient, self.share)
        step = step.mul_(self.share)
        whole = self.step.data
        if isinstance(whole, DTensor):
            step = DTensor.from_local(step, whole.device_mesh, whole.placements)
        self.step.grad = step

    def pack(self) -> PackedTensor:
        """The codes of the last refresh, as a checkpoint holds them.

        Raises:
            UnsupportedError: the weight is cut over several devices.
        """
        if self.codes.shape != self.weight.shape:
            raise UnsupportedError(
                f"codes {list(self.codes.shape)} of a weight {list(self.weight.shape)} that is cut "
                f"over several devices: put them together, or pack on one device"
            )
        return pack(self.codes.cpu(), self.scale.cpu(), self.scheme, self.options.method)

    def prepare_product(self) -> PreparedWeight:
        """The same, as `linear_packed` reads it."""
        self.check_fresh()
        if self._served is None:
            self._served = prepare(self.pack(), self.codes.device)
        return self._served

    def extra_repr(self) -> str:
        """Shape and format, for print(model)."""
        rows, columns = self.weight.shape
        return f"{columns} -> {rows}, {self.scheme.name}, {self.options}"
