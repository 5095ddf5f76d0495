"""transformers loads packed checkpoints: `from_pretrained` after `import tercet`.

transformers warns at most about a method that it does not know and then fills the linears with
random numbers; it takes mismatched shapes of quantized tensors silently and casts float buffers to
the model's dtype. So the checkpoint is opened and checked by Tercet's own reader first, and the
packed buffers are filled from there.
"""

from collections.abc import Iterable
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn, cast

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
from tercet.export.huggingface.packed_buffers import (
    PackedBuffers,
    PackedEmbeddingForTransformers,
    PackedLinearForTransformers,
    TiedHeadForTransformers,
)
from tercet.export.huggingface.saving import SavePretrained
from tercet.export.huggingface.token_call import get_compiled_call
from tercet.models.device import resolve_dtype
from tercet.models.saved_buffers import saved_buffers
from tercet.models.split_experts import fused_experts, split
from tercet.models.transposed_linear import is_transposed

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


class TercetQuantizer(HfQuantizer):
    """Swaps packed modules in before loading and fills them afterwards."""

    requires_calibration = True
    quantization_config: TercetConfig

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """UnsupportedError for activations that packed weights are not multiplied with."""
        return resolve_dtype(dtype)

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
        if self._checkpoint.modules and next(model.parameters(), None) is None:
            first = next(iter(self._checkpoint.modules))
            cast(PackedBuffers, model.get_submodule(first)).add_anchor()
        # what `generate` asks for the step of a static cache
        model.get_compiled_call = MethodType(get_compiled_call, model)
        model.save_pretrained = SavePretrained(model, self._checkpoint.manifest)
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

    def _dequantize(self, model: "PreTrainedModel", dtype: torch.dtype | None = None) -> NoReturn:
        raise UnsupportedError(
            "a packed model is not made a plain one in place: dequantize its weights one by one, "
            "tercet.open_packed(directory).read_packed(module).dequantize(), or load the source"
        )

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
    fused = fused_experts(model)
    found = [
        name
        for name in fused
        if any(module.startswith(f"{name}.") for module in checkpoint.modules)
    ]
    if found and len(found) < len(fused):
        left = next(name for name in fused if name not in found)
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
    weight, transposed = getattr(old, "weight", None), is_transposed(old)
    shape = None
    if isinstance(weight, Tensor):
        shape = [*weight.T.shape] if transposed else [*weight.shape]
    if shape != [*entry.shape]:
        raise CheckpointError(
            f"{name}: packed with shape {list(entry.shape)}, config.json makes it {shape}"
        )
    if isinstance(old, nn.Linear) or transposed:
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
            name = target.removesuffix(".weight")
            if name in checkpoint.modules:
                raise CheckpointError(
                    f"{checkpoint.directory}: {name} is packed, and so is {module}, but the config "
                    f"ties them (tie_word_embeddings true): load it as config.json has it"
                )
            bias = cast("nn.Parameter | None", getattr(model.get_submodule(name), "bias", None))
            model.set_submodule(name, TiedHeadForTransformers(embedding, bias))
            del left[target]
    model.all_tied_weights_keys = left
    model._tied_weights_keys = left  # pyright: ignore[reportPrivateUsage]


def _check_unused(model: "PreTrainedModel", stored: set[str]) -> None:
    """A stored tensor of a module that the model has must be one that the module has, too."""
    known = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    modules = {name for name, _ in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())}
    for name in sorted(stored - known):
        module, _, part = name.rpartition(".")
        if part == "bias" and module in modules:
            raise CheckpointError(
                f"{name} is in the files, and {type(model).__name__} by this config has no such "
                f"bias: load it as config.json has it"
            )


def _check_plain(model: "PreTrainedModel", checkpoint: PackedCheckpoint) -> None:
    """Every other parameter and saved buffer of the model must be in the files, with its shape."""
    stored = set(checkpoint.names())
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    buffers = saved_buffers(model, leave_out=PackedBuffers)
    _check_unused(model, stored)
    for name, parameter in (*model.named_parameters(), *buffers.items()):
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
