"""Packed modules in a model of transformers: linears, embeddings and tied heads."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.formats import PackedTensor
from tercet.models.embedding_factor import embedding_factor
from tercet.models.input_transform import InputTransform
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.linear_packed import linear_packed, prepare
from tercet.packed_weight import PreparedWeight

_ANCHOR = "anchor"


class PackedBuffers(nn.Module):
    """Holds a weight in storage form, so that `save_pretrained` writes what was read."""

    def __init__(self, module: str, entry: PackedModule, dtype: torch.dtype) -> None:
        super().__init__()
        self.entry, self.dtype = entry, dtype
        self.prepared: PreparedWeight | None = None
        for name, (dtype, shape) in entry.layout(module).items():
            empty = torch.empty(shape, dtype=dtype, device="meta")
            self.register_buffer(name.removeprefix(f"{module}."), empty)

    def fill(self, module: str, checkpoint: PackedCheckpoint) -> None:
        """Takes the validated tensors from the checkpoint."""
        for part, tensor in checkpoint.read_packed(module).parts().items():
            self._replace(f"weight_{part}", tensor)
        if self.entry.input_scale:
            self._replace("input_scale", checkpoint.input_scale(module).to(torch.float16))
        self._prepare()

    def add_anchor(self) -> None:
        """Adds a parameter of the model's dtype and device, without numbers, that is saved nowhere.

        For models that have no other: transformers reads a model's dtype and device from its
        parameters.
        """
        device = cast("dict[str, Tensor]", self._buffers)["weight_packed"].device
        empty = torch.empty(0, dtype=self.dtype, device=device)
        self.register_parameter(_ANCHOR, nn.Parameter(empty, requires_grad=False))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + _ANCHOR, None)

    def _replace(self, name: str, tensor: Tensor) -> None:
        device = self._buffers[name].device  # pyright: ignore[reportOptionalMemberAccess]
        self._buffers[name] = tensor if device.type == "meta" else tensor.to(device)

    def to_packed(self) -> PackedTensor:
        """The weight."""
        buffers = cast("dict[str, Tensor]", self._buffers)
        return PackedTensor(
            codes=buffers["weight_packed"],
            scale=buffers["weight_scale"],
            zero=buffers.get("weight_zero"),
            second=buffers.get("weight_second"),
            scheme=self.entry.scheme,
            shape=self.entry.shape,
        )

    @property
    def weight(self) -> Tensor:
        """W [N, K] in the model's dtype, made anew: for models that read it, or give it numbers.

        y = x W^T is what the module computes, but for the rounding of its input. Before it is
        filled it is on the meta device.
        """
        if self.prepared is None:
            return torch.empty(self.entry.shape, dtype=self.dtype, device="meta")
        weight, transform = self.to_packed().dequantize(), self.transform
        if transform.scale is not None or transform.hadamard is not None:
            unit = torch.eye(weight.shape[1], device=weight.device)
            weight = weight @ transform.scale_and_rotate(unit).T
        return weight.to(self.dtype)

    @property
    def transform(self) -> InputTransform:
        """What happens to the input."""
        return InputTransform(
            scale=self._buffers.get("input_scale"),
            hadamard=self.entry.hadamard,
            activation=self.entry.activation,
        )

    def weight_for(self, device: torch.device) -> PreparedWeight:
        """The weight in its compute layout on that device."""
        if self.prepared is None or self.prepared.codes.device != device:
            self.prepared = _mark_static(prepare(self.to_packed(), device))
        return self.prepared

    def use(self, prepared: PreparedWeight) -> None:
        """Takes the same weight in its compute layout from elsewhere, and lets go of its own."""
        self.prepared = _mark_static(prepared)

    def _prepare(self) -> None:
        """Makes the compute layout where the weight lies: torch's compiler traces its use only."""
        device = cast("dict[str, Tensor]", self._buffers)["weight_packed"].device
        self.prepared = None
        if device.type != "meta":
            self.prepared = _mark_static(prepare(self.to_packed(), device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves between devices; a cast of the model leaves codes and scales as they are."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        self._prepare()
        return self

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        """As any module; what is computed by then is that of the new weight."""
        anchor = self._parameters.pop(_ANCHOR, None)
        super()._load_from_state_dict(*arguments, **named)
        if anchor is not None:
            self.register_parameter(_ANCHOR, anchor)
        if self.prepared is not None:
            self._prepare()


def _mark_static(weight: PreparedWeight) -> PreparedWeight:
    """The weight, which a CUDA graph of torch's compiler reads where it lies.

    What is neither parameter nor buffer would be copied before each replay.
    """
    if weight.codes.device.type == "cuda":
        for part in weight.parts:
            if isinstance(part, Tensor):
                # as transformers does with the caches that it compiles for
                torch._dynamo.mark_static_address(part, guard=False)  # pyright: ignore[reportPrivateUsage]
    return weight


class PackedLinearForTransformers(PackedBuffers):
    """y = transform(x) W^T + bias with W packed; the bias is a parameter, as in nn.Linear."""

    def __init__(self, module: str, entry: PackedModule, old: nn.Module) -> None:
        super().__init__(module, entry, cast(Tensor, old.weight).dtype)
        self.out_features, self.in_features = entry.shape
        self.bias = cast("nn.Parameter | None", old.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        transform = self.transform
        x, weight = transform.scale_and_rotate(x), self.weight_for(x.device)
        return linear_packed(x, weight, self.bias, activation=transform.product)


class PackedEmbeddingForTransformers(PackedBuffers):
    """Rows of a packed W [V, K] by id, in the model's dtype, and scaled as the old module's."""

    def __init__(
        self, module: str, entry: PackedModule, old: nn.Embedding, dtype: torch.dtype
    ) -> None:
        super().__init__(module, entry, dtype)
        self.num_embeddings, self.embedding_dim = entry.shape
        self.factor = embedding_factor(old, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [..] to rows [.., K]."""
        rows = embedding_packed(ids, self.weight_for(ids.device), self.dtype)
        return rows if self.factor == 1 else rows * self.factor


class TiedHeadForTransformers(nn.Module):
    """A head that multiplies by the packed embedding; the bias is a parameter of its own."""

    def __init__(
        self, embedding: PackedEmbeddingForTransformers, bias: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.bias = bias
        # a tuple keeps the embedding from being registered, and so saved, a second time
        self._embedding = (embedding,)

    @property
    def weight(self) -> Tensor:
        """As the embedding's."""
        return self._embedding[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to logits [.., V]."""
        return linear_packed(x, self._embedding[0].weight_for(x.device), self.bias)
