"""transformers loads packed checkpoints: `from_pretrained` after `import tercet`.

transformers warns at most about a method that it does not know and then fills the linears with
random numbers; it takes mismatched shapes of quantized tensors silently and casts float buffers to
the model's dtype. So the checkpoint is opened and checked by Tercet's own reader first, and the
packed buffers are filled from there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from tercet.checkpoints.packed.layout import QUANT_METHOD, PackedModule, QuantizationConfig
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import verified
from tercet.errors import CheckpointError, UnsupportedError
from tercet.formats import PackedTensor
from tercet.models.embedding_factor import embedding_factor
from tercet.models.input_transform import InputTransform
from tercet.models.split_experts import fused_experts, split
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.linear_packed import linear_packed, prepare
from tercet.packed_weight import PreparedWeight

if TYPE_CHECKING:
    # transformers registers quantizers while this very class is being defined
    from transformers import PreTrainedModel


class TercetConfig(QuantizationConfigMixin):
    """The `quantization_config` of a packed checkpoint, as transformers keeps it."""

    def __init__(self, modules: dict[str, Any], version: int = 1, **_: Any) -> None:
        self.quant_method = QUANT_METHOD  # pyright: ignore[reportAttributeAccessIssue]
        self.version = version
        self.modules = modules

    def parsed(self) -> QuantizationConfig:
        """The same, checked."""
        return QuantizationConfig.model_validate({"version": self.version, "modules": self.modules})

    def to_dict(self) -> dict[str, Any]:
        """As config.json has it."""
        return {
            "quant_method": self.quant_method,
            "version": self.version,
            "modules": self.modules,
        }


class PackedBuffers(nn.Module):
    """Holds a weight in storage form, so that `save_pretrained` writes what was read."""

    def __init__(self, module: str, entry: PackedModule) -> None:
        super().__init__()
        self.entry = entry
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

    def weight_for(self, device: torch.device) -> PreparedWeight:
        """The weight in its compute layout on that device."""
        if self.prepared is None or self.prepared.codes.device != device:
            self.prepared = _prepare_static(self.to_packed(), device)
        return self.prepared

    def _prepare(self) -> None:
        """Makes the compute layout where the weight lies: torch's compiler traces its use only."""
        device = cast("dict[str, Tensor]", self._buffers)["weight_packed"].device
        self.prepared = None
        if device.type != "meta":
            self.prepared = _prepare_static(self.to_packed(), device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves between devices; a cast of the model leaves codes and scales as they are."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        self._prepare()
        return self


def _prepare_static(packed: PackedTensor, device: torch.device) -> PreparedWeight:
    """`prepare`; a CUDA graph of torch's compiler reads the result where it lies.

    What is neither parameter nor buffer would be copied before each replay.
    """
    weight = prepare(packed, device)
    if device.type == "cuda":
        for part in weight.parts:
            if isinstance(part, Tensor):
                # as transformers does with the caches that it compiles for
                torch._dynamo.mark_static_address(part, guard=False)  # pyright: ignore[reportPrivateUsage]
    return weight


class PackedLinearForTransformers(PackedBuffers):
    """y = transform(x) W^T + bias with W packed; the bias is a parameter, as in nn.Linear."""

    def __init__(self, module: str, entry: PackedModule, old: nn.Linear) -> None:
        super().__init__(module, entry)
        self.out_features, self.in_features = entry.shape
        self.bias = old.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        scale = self._buffers.get("input_scale")
        transform = InputTransform(
            scale=scale, hadamard=self.entry.hadamard, activation=self.entry.activation
        )
        x, weight = transform.scale_and_rotate(x), self.weight_for(x.device)
        return linear_packed(x, weight, self.bias, activation=transform.product)


class PackedEmbeddingForTransformers(PackedBuffers):
    """Rows of a packed W [V, K] by id, in the model's dtype, and scaled as the old module's."""

    def __init__(
        self, module: str, entry: PackedModule, old: nn.Embedding, dtype: torch.dtype
    ) -> None:
        super().__init__(module, entry)
        self.num_embeddings, self.embedding_dim = entry.shape
        self.dtype, self.factor = dtype, embedding_factor(old, dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """As all others; what comes out follows a cast of the model."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return super()._apply(fn, recurse)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [..] to rows [.., K]."""
        rows = embedding_packed(ids, self.weight_for(ids.device), self.dtype)
        return rows if self.factor == 1 else rows * self.factor


class TiedHeadForTransformers(nn.Module):
    """A head that multiplies by the packed embedding."""

    def __init__(self, embedding: PackedEmbeddingForTransformers) -> None:
        super().__init__()
        # a tuple keeps the embedding from being registered, and so saved, a second time
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to logits [.., V]."""
        return linear_packed(x, self._embedding[0].weight_for(x.device))


class TercetQuantizer(HfQuantizer):
    """Swaps packed modules in before loading and fills them afterwards."""

    requires_calibration = True
    quantization_config: TercetConfig

    def _process_model_before_weight_loading(
        self, model: "PreTrainedModel", checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        if not checkpoint_files:
            raise CheckpointError("a packed checkpoint is loaded from files: give its directory")
        directory = Path(checkpoint_files[0]).parent
        with verified(directory):
            self._checkpoint = open_packed(directory)
        self._split = _split_experts(model, self._checkpoint)
        for name, entry in self._checkpoint.modules.items():
            _swap(model, name, entry)
        _tie(model, self._checkpoint)
        _check_plain(model, self._checkpoint)

    def _process_model_after_weight_loading(
        self, model: "PreTrainedModel", **_: Any
    ) -> "PreTrainedModel":
        for name in self._checkpoint.modules:
            cast(PackedBuffers, model.get_submodule(name)).fill(name, self._checkpoint)
        return model

    def update_weight_conversions(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, weight_conversions: list[Any], *model: Any
    ) -> list[Any]:
        """Experts that were taken apart are no longer merged.

        transformers gives the model from version 5.21 on.
        """
        kept = [one for one in weight_conversions if not (self._split and _merges_experts(one))]
        return cast("list[Any]", super().update_weight_conversions(kept, *model))

    def is_serializable(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`save_pretrained` writes the packed buffers."""
        return True

    @property
    def is_compileable(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`generate` compiles the step of a static cache."""
        return True

    @property
    def is_trainable(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The packed weights are constants."""
        return False


def _split_experts(model: "PreTrainedModel", checkpoint: PackedCheckpoint) -> bool:
    """Takes apart the experts of which the files hold any; whether there are such."""
    found = [
        name
        for name in fused_experts(model)
        if any(module.startswith(f"{name}.") for module in checkpoint.modules)
    ]
    if found and len(found) < len(fused_experts(model)):
        left = next(name for name in fused_experts(model) if name not in found)
        raise UnsupportedError(
            f"{found[0]} is packed and {left} is not: transformers merges the experts of all "
            f"layers or of none: give all of them a format in the plan, or none"
        )
    split(model, found)
    return bool(found)


def _merges_experts(conversion: Any) -> bool:
    targets: list[str] = conversion.target_patterns
    return any("experts" in target for target in targets)


def _swap(model: "PreTrainedModel", name: str, entry: PackedModule) -> None:
    try:
        old = model.get_submodule(name)
    except AttributeError as error:
        raise CheckpointError(
            f"{type(model).__name__} has no module {name!r}, which the checkpoint packs: load it "
            f"with the class that config.json names"
        ) from error
    weight = getattr(old, "weight", None)
    if not isinstance(weight, Tensor) or tuple(weight.shape) != entry.shape:
        shape = list(weight.shape) if isinstance(weight, Tensor) else None
        raise CheckpointError(
            f"{name}: packed with shape {list(entry.shape)}, config.json makes it {shape}"
        )
    if isinstance(old, nn.Linear):
        model.set_submodule(name, PackedLinearForTransformers(name, entry, old))
    elif isinstance(old, nn.Embedding):
        model.set_submodule(name, PackedEmbeddingForTransformers(name, entry, old, model.dtype))
    else:
        raise UnsupportedError(f"{name} is a {type(old).__name__}, neither linear nor embedding")


def _tie(model: "PreTrainedModel", checkpoint: PackedCheckpoint) -> None:
    """A head tied to an embedding that is packed now multiplies by the packed embedding."""
    tied = cast("dict[str, str]", getattr(model, "all_tied_weights_keys", None) or {})
    left = dict(tied)
    for target, source in tied.items():
        module = source.removesuffix(".weight")
        if module in checkpoint.modules:
            embedding = cast(PackedEmbeddingForTransformers, model.get_submodule(module))
            model.set_submodule(target.removesuffix(".weight"), TiedHeadForTransformers(embedding))
            del left[target]
    model.all_tied_weights_keys = left
    model._tied_weights_keys = left  # pyright: ignore[reportPrivateUsage]


def _check_plain(model: "PreTrainedModel", checkpoint: PackedCheckpoint) -> None:
    """Every other parameter of the model must be in the files, with its shape."""
    stored = set(checkpoint.names())
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    for name, parameter in model.named_parameters():
        if name in tied:
            continue
        if name not in stored:
            raise CheckpointError(
                f"{checkpoint.directory}: {name!r} of {type(model).__name__} is not in the files, "
                f"and transformers would fill it at random: load it with the class that "
                f"config.json names"
            )
        shape = checkpoint.layout[name][1]
        if tuple(parameter.shape) != shape:
            raise CheckpointError(
                f"{checkpoint.directory}: {name} has shape {list(shape)}, config.json makes it "
                f"{list(parameter.shape)}"
            )


def register() -> None:
    """Makes the method known to transformers; harmless when repeated."""
    if QUANT_METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(QUANT_METHOD)(TercetConfig)
        register_quantizer(QUANT_METHOD)(TercetQuantizer)
