"""compressed-tensors: what vLLM loads without a plugin, and transformers with the library.

Every linear layer keeps its codes and its scales. An embedding is written dequantized in float32,
which holds its values exactly: transformers 5.23 cannot load a packed one, vLLM only looks rows up
in it and cannot multiply by a tied one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tercet.checkpoints.imports.compressed_tensors import (
    FP4_FORMS,
    METHOD,
    read_section,
    store,
)
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.errors import CheckpointError
from tercet.export import transformers_client
from tercet.export.compressed_tensors.fit import (
    ModuleStorage,
    bits_per_weight,
    choose_storage,
    refusal_reason,
    shared_second,
)
from tercet.export.engine_directory import write_directory
from tercet.export.target import Holding, client_module, is_embedding, refuse
from tercet.export.unpacked import compare_directory


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
            reason = refusal_reason(checkpoint, name, entry)
            if reason is not None:
                found.append(Holding(module=name, reason=reason))
                continue
            storage = choose_storage(checkpoint, name)
            found.append(
                Holding(
                    module=name,
                    kind=storage.kind,
                    bits_per_weight=bits_per_weight(storage, entry),
                    activation_block=entry.shape[1] if storage.activations else None,
                )
            )
        return tuple(found)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        refuse(self, self.holdings(checkpoint))
        storages = {
            n: choose_storage(checkpoint, n) for n in checkpoint.modules if not is_embedding(n)
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


def _store(
    checkpoint: PackedCheckpoint, module: str, storage: ModuleStorage | None
) -> dict[str, Tensor]:
    """The tensors of a module, dequantized where it has no storage."""
    weight = checkpoint.read_packed(module)
    if storage is None:
        return {"weight": weight.dequantize()}
    second = None if weight.second is None else shared_second(checkpoint, module)
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
