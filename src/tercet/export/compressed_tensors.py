"""compressed-tensors: what vLLM loads without a plugin, and transformers with the library.

Every linear layer keeps its codes and its scales. An embedding is written dequantized in float32,
which holds its values exactly: transformers 5.23 cannot load a packed one, vLLM only looks rows up
in it and cannot multiply by a tied one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tercet.checkpoints.imports.compressed_tensors import (
    BITS,
    FP4_FORMS,
    METHOD,
    Form,
    read_section,
    store,
)
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.errors import CheckpointError
from tercet.export import transformers_client
from tercet.export.engine_directory import write_directory
from tercet.export.fused_layers import fused_siblings
from tercet.export.target import Holding, client_module, is_embedding, refuse, transform_reason
from tercet.export.unpacked import compare_directory
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


class CompressedTensors:
    """Integers of 2, 3, 4 and 8 bits, with int8 inputs too, and fp8; ternary in 2, nonary in 4.

    4-bit floats as mxfp4 and nvfp4.
    """

    name = "compressed-tensors"
    client = "compressed-tensors"
    extra = "compressed-tensors"

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        found: list[Holding] = []
        for name, entry in checkpoint.modules.items():
            if is_embedding(name):
                found.append(Holding(module=name, kind="float32", bits_per_weight=32.0))
                continue
            reason = _reason(checkpoint, name, entry)
            if reason is not None:
                found.append(Holding(module=name, reason=reason))
                continue
            storage = _choose_storage(checkpoint, name)
            found.append(
                Holding(
                    module=name,
                    kind=storage.kind,
                    bits_per_weight=_bits_per_weight(storage, entry),
                    activation_block=entry.shape[1] if storage.activations else None,
                )
            )
        return tuple(found)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        refuse(self, self.holdings(checkpoint))
        storages = {
            n: _choose_storage(checkpoint, n) for n in checkpoint.modules if not is_embedding(n)
        }
        write_directory(
            checkpoint,
            out,
            _config(checkpoint, storages),
            lambda module: _store(checkpoint, module, storages.get(module)),
            dequantized=[n for n in checkpoint.modules if is_embedding(n)],
        )

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        transformers_client.write_twin(checkpoint, out)

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        compressors = client_module(self, "compressed_tensors.compressors")
        quantization = client_module(self, "compressed_tensors.quantization")
        section = read_section(read_json(out / "config.json"), str(out))
        _, stored = open_weights(out)
        for name in [n.removesuffix(".weight") for n in stored if is_embedding(n[:-7])]:
            yield name, stored[f"{name}.weight"].read().float()
        for name in [n.removesuffix(".weight_scale") for n in stored if n.endswith("weight_scale")]:
            group = section.group(name)
            if group is None or group.weights is None:
                raise CheckpointError(f"{out}: no group of config.json names {name}")
            scheme = quantization.QuantizationScheme(
                targets=[name], weights=group.weights.model_dump(exclude_none=True)
            )
            names = [n for n in stored if n.startswith(f"{name}.weight")]
            state = {n.removeprefix(f"{name}."): stored[n].read() for n in names}
            # a model in float32 holds its scales in float32
            state["weight_scale"] = state["weight_scale"].float()
            form = group.format or section.format
            compressor = compressors.BaseCompressor.get_value_from_registry(form)
            yield name, compressor.decompress(state, scheme)["weight"].float()

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        return compare_directory(checkpoint, out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        client_module(self, "compressed_tensors")
        return transformers_client.logits(out, tokens, _load)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        client_module(self, "compressed_tensors")
        return transformers_client.greedy(out, tokens, count, _load)


def _load(directory: Path) -> Any:
    """The model in float32, dequantized: at its first pass 4-bit floats would become bfloat16."""
    model = transformers_client.load(directory)
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not quantizer.quantization_config.dequantize:
        quantizer.compressor.decompress_model(model)
    # its own float() refuses a quantized model
    return nn.Module.float(model)


def _reason(checkpoint: PackedCheckpoint, module: str, entry: PackedModule) -> str | None:
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
    moved = scale / _shared_second(checkpoint, module)
    if torch.equal(moved.to(weight.scale.dtype).float(), moved):
        return None
    return (
        f"{entry.format}: under the second level of the layers that engines fuse with it, scales "
        f"would be rounded: {_WIDEST}"
    )


def _shared_second(checkpoint: PackedCheckpoint, module: str) -> Tensor:
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


def _choose_storage(checkpoint: PackedCheckpoint, module: str) -> ModuleStorage:
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
    two_levels = entry.scheme.scaling.second_level
    dtype = "torch.float8_e4m3fn" if two_levels else "torch.uint8"
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group" if two_levels else "group",
        "group_size": entry.scheme.scaling.group_size,
        "dynamic": False,
        "scale_dtype": dtype,
        "zp_dtype": dtype,
    }
    return ModuleStorage(form=FP4_FORMS[entry.format], bits=4, weights=weights, activations=None)


def _bits_per_weight(storage: ModuleStorage, entry: PackedModule) -> float:
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


def _store(
    checkpoint: PackedCheckpoint, module: str, storage: ModuleStorage | None
) -> dict[str, Tensor]:
    """The tensors of a module, dequantized where it has no storage."""
    weight = checkpoint.read_packed(module)
    if storage is None:
        return {"weight": weight.dequantize()}
    second = None if weight.second is None else _shared_second(checkpoint, module)
    parts = store(weight, storage.form, storage.bits, second)
    if weight.zero is not None:
        # transformers dequantizes these in the dtype of the scales, and float16 would round
        parts["weight_scale"] = parts["weight_scale"].float()
    return parts


def _config(checkpoint: PackedCheckpoint, storages: dict[str, ModuleStorage]) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    for name, storage in storages.items():
        group = groups.setdefault(
            storage.kind,
            {
                "targets": [],
                "weights": storage.weights,
                "input_activations": storage.activations,
                "output_activations": None,
                "format": storage.form.value,
            },
        )
        group["targets"].append(name)
    forms = sorted({storage.form.value for storage in storages.values()})
    # engines look for every linear layer in targets or here
    plain = [
        name.removesuffix(".weight")
        for name in checkpoint.names()
        if name.endswith(".weight") and len(checkpoint.layout[name][1]) == 2
    ]
    section: dict[str, Any] = {
        "quant_method": METHOD,
        "format": forms[0] if len(forms) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups.values())},
        "ignore": plain,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
    config = {**checkpoint.config, "quantization_config": section}
    if any(not storage.weights["symmetric"] for storage in storages.values()):
        # compressed-tensors 0.20 leaves zero points unpacked on the meta device, so transformers
        # 5.23 finds other shapes in the file, unless it dequantizes while it loads
        section["dequantize"] = True
    elif any(storage.form in FP4_FORMS.values() for storage in storages.values()):
        # what it dequantizes of 4-bit floats at the first pass is bfloat16, whatever the model is
        # loaded in; while it loads, it takes all modules for those of the first group
        if len(groups) == 1:
            section["dequantize"] = True
        else:
            config = {k: v for k, v in config.items() if k != "torch_dtype"}
            config["dtype"] = "bfloat16"
    return config


TARGET = CompressedTensors()
