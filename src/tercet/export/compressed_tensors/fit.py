"""How each module is stored in compressed-tensors, and why some cannot be."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.compressed_tensors import (
    BITS,
    FP4_FORMS,
    FP4_STRATEGIES,
    METHOD,
    Form,
)
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export.fused_layers import fused_siblings
from tercet.export.target import is_embedding, transform_reason
from tercet.formats import Granularity
from tercet.formats.encode import effective_scale, second_level
from tercet.models.split_experts import is_expert

_SHARING = {Granularity.TENSOR, Granularity.CHANNEL, Granularity.GROUP}
_SCALE_DTYPES = ("float16", "bfloat16", "float32")
_WIDEST = "compress to int8, or export to huggingface, which holds every format"


@dataclass(frozen=True, kw_only=True)
class ModuleStorage:
    """How one module is stored.

    Attributes:
        form: the compression format.
        bits: of one value.
        weights: `weights` of its config group.
        activations: `input_activations` of its config group.
    """

    form: Form
    bits: int
    weights: dict[str, Any]
    activations: dict[str, Any] | None

    @property
    def kind(self) -> str:
        """What to call it: "pack-quantized int4 g64"."""
        if self.form in FP4_FORMS.values():
            return self.form.value
        number = "fp8" if self.form is Form.FLOAT else f"int{self.bits}"
        size = self.weights["group_size"]
        sharing = f"g{size}" if size is not None else self.weights["strategy"]
        asym = "" if self.weights["symmetric"] else " asym"
        inputs = ", fp8 inputs" if self.activations and self.activations["type"] == "float" else ""
        return f"{self.form.value} {number} {sharing}{asym}{inputs}"


def refusal_reason(checkpoint: PackedCheckpoint, module: str, entry: PackedModule) -> str | None:
    """Why the format cannot hold a module, or None."""
    scheme, scaling = entry.scheme, entry.scheme.scaling
    if is_expert(module):
        return "transformers would fill experts at random: load the checkpoint itself (vllm plugin)"
    if entry.input_scale or entry.hadamard is not None:
        return transform_reason(entry, METHOD)
    if entry.format in FP4_FORMS:
        return (
            _columns_reason(entry)
            or _width_reason(entry)
            or _fused_reason(checkpoint, module)
            or _second_reason(checkpoint, module)
        )
    if scheme.element.name not in (*BITS, "fp8_e4m3"):
        held = f"{', '.join((*BITS, *FP4_FORMS))} and fp8_e4m3"
        return f"{entry.format}: compressed-tensors holds {held} without loss: {_WIDEST}"
    if scaling.granularity not in _SHARING or scaling.second_level:
        return f"{entry.format}: scales are held per tensor, channel or group: {_WIDEST}"
    if scaling.dtype not in _SCALE_DTYPES:
        return f"{entry.format}: scales are held in {', '.join(_SCALE_DTYPES)}: {_WIDEST}"
    return (
        _columns_reason(entry)
        or _width_reason(entry)
        or _zero_reason(checkpoint, module)
        or _fused_reason(checkpoint, module)
    )


def _columns_reason(entry: PackedModule) -> str | None:
    group = entry.scheme.scaling.group_size
    if group is None or entry.shape[1] % group == 0:
        return None
    return (
        f"{entry.format}: its {entry.shape[1]} columns are no multiple of the group {group}: "
        f"compress with a group that divides them, or with channel scales"
    )


def _second_reason(checkpoint: PackedCheckpoint, module: str) -> str | None:
    """Engines take one second level for all that they multiply as one weight; by its reciprocal."""
    entry = checkpoint.modules[module]
    if not entry.scheme.scaling.second_level:
        return None
    weight = checkpoint.read_packed(module)
    scale = effective_scale(weight.scale, weight.second)
    own = second_level(scale, entry.scheme)
    if own is None or weight.second is None or not torch.equal(own, weight.second):
        return (
            f"{entry.format}: its second level is not the power of two whose reciprocal is exact: "
            f"compress the model again"
        )
    moved = scale / shared_second(checkpoint, module)
    if torch.equal(moved.to(weight.scale.dtype).float(), moved):
        return None
    return (
        f"{entry.format}: under the second level of the layers that engines fuse with it, scales "
        f"would be rounded: {_WIDEST}"
    )


def shared_second(checkpoint: PackedCheckpoint, module: str) -> Tensor:
    """The largest second level of those that engines fuse; 1 where all weights are 0."""
    names = fused_siblings(module, checkpoint.modules)
    second = torch.stack([checkpoint.tensor(f"{name}.weight_second") for name in names]).max()
    return torch.where(second > 0, second, 1.0)


def _width_reason(entry: PackedModule) -> str | None:
    """Floats and W8A8 come with one scale a channel or tensor, as the engines' kernels have it."""
    element, activation = entry.scheme.element.name, entry.activation
    whole = entry.scheme.scaling.granularity is not Granularity.GROUP
    if element == "fp8_e4m3" and (not whole or activation == "int8_token"):
        return (
            f"{entry.format}, activations {activation}: fp8 weights are held with channel or "
            f"tensor scales, and inputs in floating point or fp8: use fp8_e4m3-channel"
        )
    if activation == "fp8_token" and element != "fp8_e4m3":
        return (
            f"{entry.format} with activations {activation}: fp8 inputs are multiplied by fp8 "
            f"weights: use fp8_e4m3-channel"
        )
    if activation == "int8_token" and (
        element != "int8" or not whole or entry.scheme.scaling.zero is not None
    ):
        return (
            f"{entry.format} with activations {activation}: int8 inputs are multiplied by "
            f"symmetric int8 weights with channel or tensor scales: use int8-channel"
        )
    return None


def _zero_reason(checkpoint: PackedCheckpoint, module: str) -> str | None:
    entry = checkpoint.modules[module]
    if entry.scheme.scaling.zero is None:
        return None
    bits = BITS[entry.scheme.element.name]
    if entry.scheme.scaling.zero != "int8":
        return (
            f"{entry.format}: zero points in {entry.scheme.scaling.zero}, integers of {bits} bits "
            f"are held: compress with -asym, or export to huggingface"
        )
    formats = {e.format for name, e in checkpoint.modules.items() if not is_embedding(name)}
    if len(formats) > 1:
        return (
            f"{entry.format} beside {', '.join(sorted(formats - {entry.format}))}: transformers "
            f"loads zero points only where every linear layer has the same format: give all one "
            f"format, or compress without zero points"
        )
    zero = checkpoint.tensor(f"{module}.weight_zero")
    low, high = (int(zero.min()), int(zero.max())) if zero.numel() else (0, 0)
    if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1):
        return None
    return (
        f"{entry.format}: zero points from {low} to {high}, {bits} bits hold "
        f"{-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}: compress symmetrically or to int8-asym"
    )


def _fused_reason(checkpoint: PackedCheckpoint, module: str) -> str | None:
    def layout_key(name: str) -> tuple[object, ...]:
        entry = checkpoint.modules[name]
        scaling, integer = entry.scheme.scaling, entry.scheme.element.integer
        return scaling.granularity, scaling.group_size, scaling.zero, entry.activation, integer

    other = next(
        (
            name
            for name in fused_siblings(module, checkpoint.modules)
            if layout_key(name) != layout_key(module)
        ),
        None,
    )
    if other is None:
        return None
    return (
        f"{checkpoint.modules[module].format} beside {other} in "
        f"{checkpoint.modules[other].format}: engines multiply both as one weight, so they need "
        f"one group size, zero points or none, and one activation: give them one format in the plan"
    )


def choose_storage(checkpoint: PackedCheckpoint, module: str) -> ModuleStorage:
    """How a module that is not refused is stored."""
    entry = checkpoint.modules[module]
    scheme, scaling = entry.scheme, entry.scheme.scaling
    if entry.format in FP4_FORMS:
        return _fp4_storage(entry)
    if scheme.element.name == "fp8_e4m3":
        form, bits = Form.FLOAT, 8
    elif entry.activation is not None:
        form, bits = Form.INT, 8
    else:
        # engines run these side by side as one product, so they must be of one width
        names = fused_siblings(module, checkpoint.modules)
        form = Form.PACKED
        bits = max(BITS[checkpoint.modules[name].scheme.element.name] for name in names)
    strategy = scaling.granularity.value
    if form is Form.PACKED and scaling.granularity is Granularity.TENSOR:
        strategy = Granularity.CHANNEL.value
    weights = {
        "num_bits": bits,
        "type": "float" if form is Form.FLOAT else "int",
        "symmetric": scaling.zero is None,
        "strategy": strategy,
        "group_size": scaling.group_size,
        "dynamic": False,
    }
    kind = "float" if entry.activation == "fp8_token" else "int"
    tokens = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    return ModuleStorage(
        form=form, bits=bits, weights=weights, activations=tokens if entry.activation else None
    )


def _fp4_storage(entry: PackedModule) -> ModuleStorage:
    dtype = "torch.float8_e4m3fn" if entry.scheme.scaling.second_level else "torch.uint8"
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": FP4_STRATEGIES[entry.format],
        "group_size": entry.scheme.scaling.group_size,
        "dynamic": False,
        "scale_dtype": dtype,
        "zp_dtype": dtype,
    }
    return ModuleStorage(form=FP4_FORMS[entry.format], bits=4, weights=weights, activations=None)


def bits_per_weight(storage: ModuleStorage, entry: PackedModule) -> float:
    """Bits a weight of a module so stored: codes, scales, zero points and shapes."""
    rows, columns = entry.shape
    scaling = entry.scheme.scaling
    if storage.form in FP4_FORMS.values():
        return entry.scheme.bits_per_weight(entry.shape)
    groups = scaling.scale_shape(entry.shape)[1]
    width = 4 if scaling.zero is not None else scaling.torch_dtype.itemsize
    scales = rows * groups * width
    if storage.weights["strategy"] == Granularity.TENSOR.value:
        scales = width
    size = rows * columns + scales
    if storage.form is Form.PACKED:
        size = 4 * rows * -(-columns * storage.bits // 32) + scales + 2 * torch.int64.itemsize
        size += 4 * groups * -(-rows * storage.bits // 32) if scaling.zero is not None else 0
    return size * 8 / max(rows * columns, 1)
